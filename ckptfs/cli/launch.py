"""Running the daemon of a mount: in this process, or as a process of its own that this one waits for.

In the background, the daemon is the same command with ``--foreground`` in a new session, so there is one way to serve
and nothing is forked after threads exist. Both ends of a pipe tell the launcher how it went: a byte means ready, the
end of the file that the daemon is gone. Until it is ready the daemon keeps the launcher's stderr, so what it and
libfuse have to say reaches the user; from then on both outputs go to ``ckptfs.log`` in the volume directory.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import ckptfs
from ckptfs.errors import CkptfsError, RefusedError

if TYPE_CHECKING:
    from ckptfs.mount.options import MountOptions

_log = logging.getLogger(__name__)

LOG_NAME = "ckptfs.log"

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_HIGHEST_STATUS = 5
"""Exit statuses above are not of the contract: the daemon was killed, or Python failed."""


def start_daemon(directory: Path, mountpoint: Path, options: str) -> int:
    """Start a daemon and wait until it is ready, or has ended; returns the exit status for this process.

    The daemon has printed why when it refused. Raises :class:`CkptfsError` when it ended in another way.
    """
    readable, writable = os.pipe()
    command = [sys.executable, "-P", "-m", "ckptfs", "mount", "--foreground", "--ready-fd", str(writable)]
    if options:
        command += ["-o", options]
    daemon = subprocess.Popen(
        [*command, "--", str(directory), str(mountpoint)],
        stdin=subprocess.DEVNULL,
        pass_fds=[writable],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": _python_path()},
    )
    os.close(writable)
    with os.fdopen(readable, "rb") as ready:
        try:
            if ready.read(1):
                return 0
        except BaseException:
            daemon.terminate()
            raise
    status = daemon.wait()
    if 0 < status <= _HIGHEST_STATUS:
        return status
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    raise CkptfsError(f"the daemon {how} before the mount was ready; {directory / LOG_NAME} may say why")


def serve_here(directory: Path, mountpoint: Path, options: MountOptions, *, ready_fd: int | None) -> None:
    """Serve the mount in this process until it is unmounted. An empty or missing ``directory`` becomes a volume first.

    ``ready_fd``: where to tell a launcher; None: stay with this process's outputs, and tell a service manager if
    there is one. Raises what ``serve`` raises, and :class:`RefusedError` for paths that cannot go together.
    """
    import trio

    from ckptfs.admin.server import serve_admin
    from ckptfs.mount.session import serve
    from ckptfs.volume.format import format_volume, is_unformatted
    from ckptfs.volume.lock import note_mountpoint

    if ready_fd is not None:
        os.set_inheritable(ready_fd, False)
    _allow_many_descriptors()
    directory, mountpoint = directory.resolve(), mountpoint.parent.resolve() / mountpoint.name
    _refuse_unusable_mountpoint(mountpoint)
    _refuse_nested_paths(directory, mountpoint)
    made = is_unformatted(directory)
    if made:
        format_volume(directory)
    go_on_in_log = _start_logging(directory, to_file=ready_fd is not None)
    if made:  # a mistyped path, or a device that is not mounted, must not go unnoticed
        _log.warning("%s was empty or missing: made a new volume there, with one stripe", directory)
    os.chdir("/")  # so that the daemon keeps no filesystem busy

    def ready() -> None:
        note_mountpoint(directory, str(mountpoint))
        if ready_fd is None:
            _tell_service_manager()
            return
        go_on_in_log()
        try:
            os.write(ready_fd, b"1")
        except BrokenPipeError:
            pass  # the launcher is gone: nobody waits, and the mount is as good without it
        finally:
            os.close(ready_fd)

    async def serve_until_unmounted() -> None:
        await serve(directory, mountpoint, options, ready=ready, services=[serve_admin])

    trio.run(serve_until_unmounted)


def _allow_many_descriptors() -> None:
    """Raise the soft limit, mostly 1024, to the hard one: each lane of a file that is open or unsealed needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _python_path() -> str:
    """Where this very ckptfs is, so that the daemon cannot be another one that lies in the current directory."""
    here = str(Path(ckptfs.__file__).parent.parent)
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))


def _refuse_unusable_mountpoint(mountpoint: Path) -> None:
    """What cannot be mounted on, and what a mount would hide. What is mounted there already is for the session to
    judge.
    """
    from ckptfs.mount.table import mount_at

    if mount_at(mountpoint) is not None:
        return
    if not os.path.lexists(mountpoint):
        raise RefusedError(
            f"the mountpoint {mountpoint} does not exist. Make the directory first: mkdir -p {mountpoint}"
        )
    if not mountpoint.is_dir():
        raise RefusedError(f"the mountpoint {mountpoint} is not a directory. Mount on an empty directory")
    if any(mountpoint.iterdir()):
        raise RefusedError(
            f"the mountpoint {mountpoint} is not empty, and the mount would hide what is in it. "
            "Mount on an empty directory"
        )


def _refuse_nested_paths(directory: Path, mountpoint: Path) -> None:
    from ckptfs import config
    from ckptfs.volume.format import DEFAULT_STRIPE, is_unformatted

    stripes = [directory / DEFAULT_STRIPE]
    if not is_unformatted(directory):
        stripes = [stripe.path.resolve() for stripe in config.load(directory).stripes]
    for what, path in (("volume directory", directory), *(("stripe", stripe) for stripe in stripes)):
        if path.is_relative_to(mountpoint):
            raise RefusedError(
                f"the {what} {path} lies inside the mountpoint {mountpoint}, which would hide it. Mount somewhere else"
            )
        if mountpoint.is_relative_to(path):
            raise RefusedError(f"the mountpoint {mountpoint} lies inside the {what} {path}. Mount somewhere else")


def _start_logging(directory: Path, *, to_file: bool) -> Callable[[], None]:
    """Log to stderr, and to the volume's log if wanted; returns what ends the part on stderr and sends both outputs
    to the log.
    """
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    terminal = logging.StreamHandler()
    root.addHandler(terminal)
    if not to_file:
        terminal.setFormatter(logging.Formatter(_LOG_FORMAT))
        return lambda: None
    terminal.setLevel(logging.WARNING)
    stream = (directory / LOG_NAME).open("a", encoding="utf-8", errors="backslashreplace")
    file = logging.StreamHandler(stream)
    file.setFormatter(logging.Formatter(_LOG_FORMAT))
    root.addHandler(file)

    def go_on_in_log() -> None:
        root.removeHandler(terminal)
        for output in (sys.stdout, sys.stderr):
            output.flush()
            os.dup2(stream.fileno(), output.fileno())

    return go_on_in_log


def _tell_service_manager() -> None:
    """What sd_notify(3) does: READY=1 to the socket that systemd names."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
        notify.sendto(b"READY=1\n", "\0" + address[1:] if address.startswith("@") else address)
