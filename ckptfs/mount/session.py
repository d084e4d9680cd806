"""A mount from beginning to end: open the volume, mount, serve, unmount, seal.

How a mount ends
    - ``umount`` by anyone, or :meth:`Session.request_unmount`: the kernel ends the connection and the loop returns;
    - SIGTERM or SIGINT: unmounted, lazily when something is open, and then served until the last file is closed;
    - a second signal: serving stops at once, programs with open files get errors.

In each case leaving :func:`~ckptfs.volume.volume.open_volume` seals everything. Services (the control socket) run
beside the loop and are cancelled when it returns, before sealing; a client that waits for the seal waits for the
process.

Nothing else in ckptfs calls pyfuse3's session functions. pyfuse3 keeps its session in globals: one mount per process.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
from collections.abc import AsyncIterable, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import pyfuse3
import trio

from ckptfs.errors import ProtectedData, RefusedError, VolumeInUse
from ckptfs.mount import kernel, table
from ckptfs.mount.allocator import keep_buffers
from ckptfs.mount.contract import ServedVolume
from ckptfs.mount.holders import holders_of
from ckptfs.mount.operations import Operations
from ckptfs.mount.options import MountOptions
from ckptfs.volume.volume import Volume, open_volume

_UNMOUNTED_MODE = 0o555
"""The mode of a bare mountpoint: programs that start before the mount, or outlive it, must not write beneath it."""


class Session:
    """A mount that is being served, as its services see it."""

    def __init__(self, mountpoint: Path) -> None:
        self.mountpoint = mountpoint
        self._notifications = trio.CapacityLimiter(4)

    async def request_unmount(self, *, lazily: bool = False) -> None:
        """Unmount now. Returns when nothing new can come in; what was written is sealed when the process has ended.

        Lazily: programs keep what they have open, and the process ends with the last of it. Otherwise
        raises :class:`ProtectedData`, naming processes and files, when something is open.
        """
        try:
            await trio.to_thread.run_sync(partial(kernel.unmount, self.mountpoint, lazily=lazily))
        except OSError as why:
            if why.errno == errno.EBUSY:
                raise ProtectedData(await trio.to_thread.run_sync(self._why_busy)) from why
            if why.errno != errno.EINVAL:  # somebody else was faster
                raise

    async def invalidate_inode(self, ino: int) -> None:
        """Make the kernel forget attributes and cached pages of an inode that changed without a request of the
        kernel's.

        To be called outside every lock that a request handler takes: the kernel may wait for requests under way.
        """
        await self._notify(partial(pyfuse3.invalidate_inode, ino))

    async def invalidate_entry(self, parent: int, name: bytes) -> None:
        """Make the kernel forget what it knows of a name; otherwise as :meth:`invalidate_inode`."""
        await self._notify(partial(pyfuse3.invalidate_entry, parent, name))

    async def _notify(self, notification: Callable[[], None]) -> None:
        try:
            await trio.to_thread.run_sync(notification, limiter=self._notifications)
        except OSError as why:
            if why.errno not in (errno.ENOENT, errno.ENOTCONN, errno.ENODEV):  # the kernel knows nothing of it
                raise

    def _why_busy(self) -> str:
        holders = holders_of(self.mountpoint)
        shown = [f"{holder.path} by {holder.command} (pid {holder.pid})" for holder in holders[:8]]
        if len(holders) > len(shown):
            shown.append(f"and {len(holders) - len(shown)} more")
        what = "; ".join(shown) or "something that this process may not see"
        return f"{self.mountpoint} is busy: {what}. Close these, or: ckptfs umount --lazy {self.mountpoint}"


class Service(Protocol):
    """What runs beside the mount. Reports that it has started, as :meth:`trio.Nursery.start` wants it, and runs until
    cancelled.
    """

    async def __call__(self, volume: Volume, session: Session, *, task_status: trio.TaskStatus[None]) -> None: ...


class _BoundService(Protocol):
    async def __call__(self, session: Session, *, task_status: trio.TaskStatus[None]) -> None: ...


async def serve(
    directory: Path,
    mountpoint: Path,
    options: MountOptions,
    *,
    ready: Callable[[], None],
    services: Sequence[Service] = (),
) -> None:
    """Mount the volume in ``directory`` on ``mountpoint``; return when it is unmounted and everything is sealed.

    ``ready`` is called when the mount answers and every service has started. A mount left dead on ``mountpoint`` is
    replaced. Raises a :class:`RefusedError` that says why when it cannot be mounted, and what ``open_volume`` raises.
    """
    directory = await trio.to_thread.run_sync(directory.resolve)
    mountpoint = await trio.to_thread.run_sync(prepare_mountpoint, mountpoint)
    check_permitted(directory, mountpoint, options)
    async with open_volume(directory, read_only=options.read_only) as volume:
        bound = [_announce_changes, *services]
        await serve_volume(
            volume,
            directory,
            mountpoint,
            options,
            ready=ready,
            services=[partial(service, volume) for service in bound],
        )


async def _announce_changes(volume: Volume, session: Session, *, task_status: trio.TaskStatus[None]) -> None:
    """Let the volume tell the kernel of changes that came from the admin tool."""
    volume.attach_kernel(session.invalidate_inode, session.invalidate_entry)
    task_status.started()


async def serve_volume(
    volume: ServedVolume,
    directory: Path,
    mountpoint: Path,
    options: MountOptions,
    *,
    ready: Callable[[], None],
    services: Sequence[_BoundService] = (),
) -> None:
    """As :func:`serve`, for a volume that is open already and stays open."""
    keep_buffers()
    session = Session(mountpoint)
    operations = Operations(volume, options.presentation)
    with (
        trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
        _mounted(operations, directory, mountpoint, options),
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_unmount_on_signal, session, signals)
            nursery.start_soon(_start, session, services, nursery, ready)
            await pyfuse3.main()
            nursery.cancel_scope.cancel()


async def _start(
    session: Session, services: Sequence[_BoundService], nursery: trio.Nursery, ready: Callable[[], None]
) -> None:
    await trio.to_thread.run_sync(_settle_limits, session.mountpoint)
    for service in services:
        await nursery.start(service, session)
    ready()


def _settle_limits(mountpoint: Path) -> None:
    """Once the mount has answered: before that, the kernel still overwrites the limits with what libfuse tells it."""
    os.stat(mountpoint)
    entry = table.mount_at(mountpoint)
    if entry is not None:
        kernel.raise_limits(entry.device_major, entry.device_minor)


async def _unmount_on_signal(session: Session, signals: AsyncIterable[int]) -> None:
    asked = False
    async for _ in signals:
        if asked:
            pyfuse3.terminate()
            return
        asked = True
        try:
            await session.request_unmount()
        except ProtectedData:
            await session.request_unmount(lazily=True)


@contextmanager
def _mounted(operations: Operations, directory: Path, mountpoint: Path, options: MountOptions) -> Generator[None]:
    """Mount, and see to it that nothing is mounted afterwards."""
    wanted = {f"fsname={options.fsname or table.source_of(directory)}", "subtype=ckptfs", "default_permissions"}
    wanted |= set(options.kernel)
    if options.read_only:
        wanted.add("ro")
    if options.allow_other:
        wanted.add("allow_other")
    if options.debug:
        wanted.add("debug")
    bare = os.open(mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.geteuid() != 0:  # fusermount3 mounts only on directories that its caller may write to
            _change_mode(bare, stat.S_IMODE(os.fstat(bare).st_mode) | stat.S_IRWXU)
        try:
            pyfuse3.init(operations, os.fspath(mountpoint), wanted)
        except RuntimeError as why:
            raise RefusedError(
                f"the kernel did not mount {mountpoint} ({why}); the lines above say why, dmesg may say more"
            ) from why
        finally:
            _change_mode(bare, _UNMOUNTED_MODE)
    finally:
        os.close(bare)
    try:
        yield
    finally:
        pyfuse3.close(unmount=table.mount_at(mountpoint) is not None)


def _change_mode(directory: int, mode: int) -> None:
    try:
        os.fchmod(directory, mode)
    except OSError:
        return  # somebody else's directory, or a read-only filesystem: a safeguard less, and no reason not to mount


def prepare_mountpoint(mountpoint: Path) -> Path:
    """The absolute path of a directory to mount on, cleared of a dead mount. Raises :class:`RefusedError`."""
    mountpoint = mountpoint.parent.resolve() / mountpoint.name  # a dead mountpoint itself cannot be resolved
    present = table.mount_at(mountpoint)
    if present is not None:
        if _answers(mountpoint):
            raise VolumeInUse(f"{present.volume_directory or 'a volume'} is mounted on {mountpoint}; unmount it first")
        kernel.unmount(mountpoint, lazily=True)
    try:
        found = os.stat(mountpoint)
    except FileNotFoundError:
        raise RefusedError(f"{mountpoint} does not exist; create the directory and mount again") from None
    if not stat.S_ISDIR(found.st_mode):
        raise RefusedError(f"{mountpoint} is not a directory; mount on an empty directory")
    return mountpoint.resolve()


def _answers(mountpoint: Path) -> bool:
    """Whether the mount's daemon is alive. A dead one's mount fails with ENOTCONN at once.

    Asked with statvfs, which the kernel passes on each time; attributes it would answer from its cache.
    """
    try:
        os.statvfs(mountpoint)
    except OSError as why:
        return why.errno not in (errno.ENOTCONN, errno.ECONNABORTED)
    return True


def check_permitted(directory: Path, mountpoint: Path, options: MountOptions) -> None:
    """Say in words what libfuse would fail at with a hint at best. Raises :class:`RefusedError`."""
    if directory.is_relative_to(mountpoint):
        raise RefusedError(f"the volume {directory} lies inside the mountpoint {mountpoint}, which would hide it")
    if not os.path.exists("/dev/fuse"):
        raise RefusedError(
            "there is no /dev/fuse: load the fuse module (modprobe fuse), or give the container /dev/fuse"
        )
    if os.geteuid() == 0:
        return
    if shutil.which("fusermount3") is None:
        raise RefusedError("mounting without being root needs fusermount3: install the package fuse3, or mount as root")
    if options.allow_other and not _user_allow_other():
        raise RefusedError("allow_other needs the line user_allow_other in /etc/fuse.conf, or mounting as root")


def _user_allow_other() -> bool:
    try:
        lines = Path("/etc/fuse.conf").read_text().splitlines()
    except OSError:
        return False
    return any(line.strip() == "user_allow_other" for line in lines)
