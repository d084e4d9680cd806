"""``ckptfs umount``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckptfs.cli.arguments import PATH
from ckptfs.errors import NotAVolume, ProtectedData, VolumeInUse

if TYPE_CHECKING:
    from ckptfs.mount.table import MountEntry

_LOOK_AGAIN_S = 0.05


_EXAMPLES = "\b\nExample:\n  ckptfs umount /checkpoints"


@click.command(epilog=_EXAMPLES)
@click.argument("mountpoint", type=PATH)
@click.option(
    "--lazy", is_flag=True, help="Unmount a busy mount; programs keep what they have open until they close it."
)
@click.option(
    "--timeout", type=float, default=None, metavar="SECONDS", help="Wait that long at most.  [default: no limit]"
)
def umount(mountpoint: Path, lazy: bool, timeout: float | None) -> None:
    """Seal everything, unmount MOUNTPOINT, and wait until the daemon is done.

    A busy mount is not unmounted; the programs that hold it are named. With --lazy it disappears at once, the
    command does not wait, and the daemon ends with the last open file.
    """
    from ckptfs.admin.client import DaemonSilent, NoDaemon, ask
    from ckptfs.admin.messages import Unmount, UnmountReply
    from ckptfs.mount import kernel, table
    from ckptfs.volume.lock import read_holder

    deadline_s = None if timeout is None else time.monotonic() + timeout
    mount = _mount_of(mountpoint)
    directory = mount.volume_directory
    if directory is None:  # mounted with the option fsname: the kernel's unmount does, only the wait is lost
        kernel.unmount(mount.mountpoint, lazily=lazy)
        return
    try:
        ask(directory, Unmount(lazy), UnmountReply, timeout_s=timeout)
    except NoDaemon:
        if read_holder(directory) is not None:
            raise
        kernel.unmount(mount.mountpoint, lazily=True)
        click.echo(f"{mountpoint}: its daemon was gone; the next mount of {directory} recovers", err=True)
        return
    except DaemonSilent:
        if table.mount_at(mount.mountpoint) is not None:
            raise
    if not lazy:
        _wait_until_released(directory, deadline_s)
        _require_clean_end(directory)


def _mount_of(path: Path) -> MountEntry:
    """The mount on ``path``, also a dead one, or the mount of the volume in ``path``."""
    from ckptfs.mount import table

    absolute = Path(os.path.realpath(path.parent)) / path.name if path.name not in ("", "..") else path.resolve()
    mount = table.mount_at(absolute) or table.mount_at(Path(os.path.realpath(path)))
    if mount is not None:
        return mount
    of_volume = [entry for entry in table.ckptfs_mounts() if entry.volume_directory == Path(os.path.realpath(path))]
    if not of_volume:
        raise NotAVolume(f"{path} is no mountpoint of a ckptfs volume. ckptfs status lists what is mounted")
    return of_volume[-1]


def _wait_until_released(directory: Path, deadline_s: float | None) -> None:
    from ckptfs.volume.lock import read_holder

    pid = 0
    while (holder := read_holder(directory)) is not None:
        pid = holder.pid
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise ProtectedData(
                f"unmounted, and process {holder.pid} still seals what was written. "
                f"Do not remove the stripes before it has ended; {directory} cannot be mounted until then"
            )
        time.sleep(_LOOK_AGAIN_S)
    # Everything is sealed. A moment for the process to close what it has open, so that devices can be unmounted next.
    for _ in range(100):
        if not _runs(pid):
            return
        time.sleep(_LOOK_AGAIN_S)


def _runs(pid: int) -> bool:
    """Whether the process is there, and no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _require_clean_end(directory: Path) -> None:
    """A daemon that could not seal everything, a device having failed, ends too; its user must know."""
    from ckptfs.cli.launch import LOG_NAME
    from ckptfs.meta import runs
    from ckptfs.meta.database import Database
    from ckptfs.volume.format import METADATA_NAME
    from ckptfs.volume.lock import VolumeLock

    try:
        lock = VolumeLock.acquire(directory)
    except VolumeInUse:
        return  # mounted again already
    with lock:
        database = Database.open(directory / METADATA_NAME)
        try:
            last = database.transact(runs.last)
        finally:
            database.close()
    if last is not None and not last.clean:
        raise ProtectedData(
            f"unmounted, but not everything could be sealed; {directory / LOG_NAME} says why. "
            "The next mount recovers what it can"
        )
