"""From a request to its reply, given a volume: the one place that does it, with a daemon around it or without."""

from __future__ import annotations

import stat
from typing import Protocol, assert_never

from ckptfs.admin.messages import (
    AskInfo,
    AskPrevious,
    AskRemoved,
    AskStatus,
    DaemonInfo,
    Fsck,
    InfoReply,
    PreviousReply,
    RemovedReply,
    Reply,
    Request,
    RestoredReply,
    RestorePrevious,
    StatusReply,
    Undelete,
    Unmount,
)
from ckptfs.errors import ProtectedData
from ckptfs.volume.attributes import Attributes, DirectoryEntry
from ckptfs.volume.reports import FileInfo, PreviousVersion, RemovedName, VolumeStatus

_ENTRIES_AT_ONCE = 512


class AdministeredVolume(Protocol):
    """What the admin API needs of a volume. Paths are bytes relative to its root; ``b""`` is the root."""

    async def status(self) -> VolumeStatus: ...

    async def resolve(self, path: bytes) -> int: ...

    async def getattr(self, ino: int) -> Attributes: ...

    async def readdir(self, ino: int, after_cookie: int, limit: int) -> list[DirectoryEntry]: ...

    async def file_info(self, path: bytes) -> FileInfo: ...

    async def previous(self, path: bytes) -> list[PreviousVersion]: ...

    async def restore_previous(self, path: bytes) -> None: ...

    async def removed(self, path: bytes) -> list[RemovedName]: ...

    async def undelete(self, path: bytes) -> list[bytes]: ...

    async def seal_all(self) -> None: ...


async def answer(volume: AdministeredVolume, request: Request, daemon: DaemonInfo | None) -> Reply:
    """Do what is asked. Raises ``CkptfsError`` or ``OSError``. :class:`Unmount` is for the server, which knows of a
    mount.
    """
    match request:
        case AskStatus():
            return StatusReply(await volume.status(), daemon)
        case AskInfo(path):
            return InfoReply(await _info_of_all(volume, path))
        case AskPrevious(path):
            return PreviousReply(await volume.previous(path))
        case RestorePrevious(path):
            await volume.restore_previous(path)
            return RestoredReply([path])
        case AskRemoved(path):
            return RemovedReply(await volume.removed(path))
        case Undelete(path):
            return RestoredReply(await volume.undelete(path))
        case Fsck():
            where = f"mounted at {daemon.mountpoint}" if daemon is not None else "in use"
            raise ProtectedData(f"the volume is {where}, and a check needs it at rest. Unmount it first, then run fsck")
        case Unmount():
            raise ProtectedData("the volume is not mounted by this process")
        case _:
            assert_never(request)


async def _info_of_all(volume: AdministeredVolume, path: bytes) -> list[FileInfo]:
    """Of the regular file at ``path``, or of all below it. Files that go while this walks are left out."""
    ino = await volume.resolve(path)
    if not stat.S_ISDIR((await volume.getattr(ino)).mode):
        return [await volume.file_info(path)]
    found: list[FileInfo] = []
    directories = [(path, ino)]
    while directories:
        below, ino = directories.pop()
        cookie = 0
        while entries := await volume.readdir(ino, cookie, _ENTRIES_AT_ONCE):
            cookie = entries[-1].cookie
            for entry in entries:
                entry_path = below + b"/" + entry.name if below else entry.name
                if stat.S_ISDIR(entry.attributes.mode):
                    directories.append((entry_path, entry.attributes.ino))
                elif stat.S_ISREG(entry.attributes.mode):
                    found.append(await volume.file_info(entry_path))
    return sorted(found, key=lambda info: info.path)
