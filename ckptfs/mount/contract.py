"""What the mount needs of a volume: the contract between ``mount`` and ``volume``, as structural types.

``Operations`` is written against these and not against ``volume.Volume``, so the translation can be tested on a real
mount over a small volume in memory, and served by any session. All methods raise ``CkptfsError`` or an ``OSError`` of a
device. Only what may wait is ``async``; nothing here blocks the loop. Inode 1 is the root, and inode numbers are
never used twice.

**Lookup counts.** ``lookup``, ``create``, ``mknod``, ``mkdir``, ``symlink`` and ``link`` each count one use of the
inode they answer with, ``remember`` one more, and ``forget`` takes them back. An inode and its data stay until the
count is 0, also without a name.

**Groups.** In a directory with the setgid bit, the volume gives new entries the directory's group, and new
directories the bit too. The kernel has already applied the umask.

**Times.** ``mtime_ns`` and the size change with every accepted write: the kernel drops cached pages when it sees that
they did.
"""

from __future__ import annotations

from typing import Protocol

from ckptfs.volume.attributes import AttributeChange, Attributes, Caller, DirectoryEntry, RenameMode, Space

Buffer = bytes | bytearray | memoryview
"""What a read may answer with; it must be contiguous."""


class ServedFile(Protocol):
    """An open file, from ``open`` or ``create`` to ``release``. Offsets and sizes are bytes."""

    @property
    def ino(self) -> int: ...

    async def read(self, offset: int, size: int) -> Buffer:
        """Exactly ``size`` bytes, fewer only at the end of the file. Valid until the next await: to be answered at once."""
        ...

    def read_nowait(self, offset: int, size: int) -> Buffer | None:
        """As :meth:`read`, at once from memory; ``None`` when that is not possible."""
        ...

    async def write(self, offset: int, data: bytes) -> int:
        """Take all of ``data``; returns its length. May return before the bytes are in the image."""
        ...

    async def flush(self) -> None:
        """A descriptor was closed: bytes taken so far are in the image. More writes may follow."""
        ...

    async def fsync(self, data_only: bool) -> None: ...

    async def release(self) -> None:
        """The last descriptor and mapping are gone; nothing follows."""
        ...


class ServedVolume(Protocol):
    """A volume, as far as the mount needs it."""

    async def lookup(self, parent: int, name: bytes) -> Attributes: ...

    def forget(self, ino: int, count: int) -> None: ...

    def remember(self, ino: int) -> None: ...

    async def getattr(self, ino: int) -> Attributes: ...

    async def setattr(self, ino: int, change: AttributeChange) -> Attributes: ...

    async def readlink(self, ino: int) -> bytes: ...

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attributes: ...

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attributes: ...

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attributes: ...

    async def link(self, ino: int, parent: int, name: bytes) -> Attributes: ...

    async def unlink(self, parent: int, name: bytes) -> None: ...

    async def rmdir(self, parent: int, name: bytes) -> None: ...

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, mode: RenameMode) -> None: ...

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[ServedFile, Attributes]: ...

    async def open(self, ino: int, flags: int) -> ServedFile:
        """Open with the flags of ``open(2)``; ``O_TRUNC`` arrives here and must be obeyed."""
        ...

    async def readdir(self, ino: int, after_cookie: int, limit: int) -> list[DirectoryEntry]:
        """At most ``limit`` entries after the cookie (0: from the start), without ``.`` and ``..``; none at the end."""
        ...

    async def fsync_directory(self, ino: int) -> None: ...

    async def getxattr(self, ino: int, name: bytes) -> bytes: ...

    async def setxattr(self, ino: int, name: bytes, value: bytes) -> None: ...

    async def listxattr(self, ino: int) -> list[bytes]: ...

    async def removexattr(self, ino: int, name: bytes) -> None: ...

    async def statfs(self) -> Space: ...

    async def path_of(self, ino: int) -> bytes:
        """One path of the inode from the root, for log messages; empty when it has none."""
        ...
