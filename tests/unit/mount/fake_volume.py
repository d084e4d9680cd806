"""A volume in memory that fulfils the mount's contract: what the mount's tests serve.

It keeps its books in the open, so a test can look at lookup counts, syncs and requests, and it can be told to fail.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from dataclasses import dataclass, field

import trio

from ckptfs.errors import (
    AttributeNotFound,
    IsADirectory,
    NameExists,
    NameNotFound,
    NotADirectory,
    NotEmpty,
    StaleInode,
)
from ckptfs.volume.attributes import AttributeChange, Attributes, Caller, DirectoryEntry, RenameMode, Space

ROOT = 1


@dataclass
class FakeInode:
    ino: int
    mode: int
    uid: int
    gid: int
    rdev: int = 0
    nlink: int = 1
    lookups: int = 0
    opens: int = 0
    data: bytearray = field(default_factory=bytearray)
    target: bytes = b""
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    names: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # name → cookie, inode number
    mtime_ns: int = 0
    atime_ns: int = 0
    ctime_ns: int = 0

    def attributes(self) -> Attributes:
        size = len(self.data) if stat.S_ISREG(self.mode) else len(self.target)
        return Attributes(
            ino=self.ino,
            mode=self.mode,
            nlink=self.nlink,
            uid=self.uid,
            gid=self.gid,
            rdev=self.rdev,
            size=size,
            blocks=-(-size // 512),
            atime_ns=self.atime_ns,
            mtime_ns=self.mtime_ns,
            ctime_ns=self.ctime_ns,
        )

    def touch(self) -> None:
        self.mtime_ns = self.ctime_ns = max(time.time_ns(), self.mtime_ns + 1)


class FakeFile:
    def __init__(self, volume: FakeVolume, inode: FakeInode) -> None:
        self._volume = volume
        self._inode = inode
        self.ino = inode.ino
        inode.opens += 1

    async def read(self, offset: int, size: int) -> bytes:
        if self._volume.failure is not None:
            raise self._volume.failure
        return bytes(self._inode.data[offset : offset + size])

    def read_nowait(self, offset: int, size: int) -> bytes | None:
        return None

    async def write(self, offset: int, data: bytes) -> int:
        if self._volume.failure is not None:
            raise self._volume.failure
        have = self._inode.data
        have.extend(bytes(max(0, offset - len(have))))
        have[offset : offset + len(data)] = data
        self._inode.touch()
        self._volume.requests["write"] += 1
        return len(data)

    async def flush(self) -> None:
        self._volume.requests["flush"] += 1

    async def fsync(self, data_only: bool) -> None:
        self._volume.requests["fsync data" if data_only else "fsync all"] += 1

    async def release(self) -> None:
        self._inode.opens -= 1
        self._volume.requests["release"] += 1
        self._volume.drop_if_unused(self._inode)


class FakeVolume:
    def __init__(self) -> None:
        self.inodes: dict[int, FakeInode] = {ROOT: FakeInode(ROOT, stat.S_IFDIR | 0o755, os.getuid(), os.getgid())}
        self.requests: Counter[str] = Counter()
        self.failure: Exception | None = None
        self.emptied = trio.Event()
        self._last_ino = ROOT
        self._last_cookie = 0

    # inodes

    def inode(self, ino: int) -> FakeInode:
        try:
            return self.inodes[ino]
        except KeyError:
            raise StaleInode(f"inode {ino} is gone") from None

    def child(self, parent: int, name: bytes) -> FakeInode:
        try:
            return self.inode(self.inode(parent).names[name][1])
        except KeyError:
            raise NameNotFound(f"no {name!r}") from None

    def forget(self, ino: int, count: int) -> None:
        if ino == ROOT:
            return
        inode = self.inodes[ino]
        inode.lookups -= count
        assert inode.lookups >= 0, f"inode {ino} was forgotten more often than looked up"
        self.drop_if_unused(inode)

    def remember(self, ino: int) -> None:
        self.inodes[ino].lookups += 1

    def drop_if_unused(self, inode: FakeInode) -> None:
        if inode.nlink == inode.lookups == inode.opens == 0:
            del self.inodes[inode.ino]
            if list(self.inodes) == [ROOT]:
                self.emptied.set()

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        inode = self.child(parent, name)
        inode.lookups += 1
        return inode.attributes()

    async def getattr(self, ino: int) -> Attributes:
        if self.failure is not None:
            raise self.failure
        return self.inode(ino).attributes()

    async def setattr(self, ino: int, change: AttributeChange) -> Attributes:
        inode = self.inode(ino)
        if change.mode is not None:
            inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(change.mode)
        if change.size is not None:
            del inode.data[change.size :]
            inode.data.extend(bytes(change.size - len(inode.data)))
            inode.touch()
        for name in ("uid", "gid", "atime_ns", "mtime_ns"):
            if getattr(change, name) is not None:
                setattr(inode, name, getattr(change, name))
        return inode.attributes()

    async def readlink(self, ino: int) -> bytes:
        return self.inode(ino).target

    # names

    def _insert(self, parent: int, name: bytes, inode: FakeInode) -> None:
        self._last_cookie += 1
        self.inode(parent).names[name] = (self._last_cookie, inode.ino)

    def _make(self, parent: int, name: bytes, mode: int, caller: Caller) -> FakeInode:
        directory = self.inode(parent)
        if name in directory.names:
            raise NameExists(f"{name!r} exists")
        self._last_ino += 1
        gid = directory.gid if directory.mode & stat.S_ISGID else caller.gid
        if stat.S_ISDIR(mode):
            mode |= directory.mode & stat.S_ISGID
        inode = FakeInode(self._last_ino, mode, caller.uid, gid, lookups=1)
        inode.touch()
        self.inodes[inode.ino] = inode
        self._insert(parent, name, inode)
        return inode

    def _remove(self, parent: int, name: bytes) -> None:
        inode = self.child(parent, name)
        del self.inode(parent).names[name]
        inode.nlink -= 1
        self.drop_if_unused(inode)

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attributes:
        inode = self._make(parent, name, mode, caller)
        inode.rdev = rdev
        return inode.attributes()

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attributes:
        return self._make(parent, name, mode, caller).attributes()

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attributes:
        inode = self._make(parent, name, stat.S_IFLNK | 0o777, caller)
        inode.target = target
        return inode.attributes()

    async def link(self, ino: int, parent: int, name: bytes) -> Attributes:
        inode = self.inode(ino)
        if name in self.inode(parent).names:
            raise NameExists(f"{name!r} exists")
        self._insert(parent, name, inode)
        inode.nlink += 1
        inode.lookups += 1
        return inode.attributes()

    async def unlink(self, parent: int, name: bytes) -> None:
        if stat.S_ISDIR(self.child(parent, name).mode):
            raise IsADirectory(f"{name!r} is a directory")
        self._remove(parent, name)

    async def rmdir(self, parent: int, name: bytes) -> None:
        inode = self.child(parent, name)
        if not stat.S_ISDIR(inode.mode):
            raise NotADirectory(f"{name!r} is no directory")
        if inode.names:
            raise NotEmpty(f"{name!r} is not empty")
        self._remove(parent, name)

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, mode: RenameMode) -> None:
        moved = self.child(parent, name)
        there = new_name in self.inode(new_parent).names
        if mode is RenameMode.NO_REPLACE and there:
            raise NameExists(f"{new_name!r} exists")
        if mode is RenameMode.EXCHANGE:
            other = self.child(new_parent, new_name)
            self._insert(parent, name, other)
        else:
            if there:
                self._remove(new_parent, new_name)
            del self.inode(parent).names[name]
        self._insert(new_parent, new_name, moved)

    async def readdir(self, ino: int, after_cookie: int, limit: int) -> list[DirectoryEntry]:
        listed = sorted((cookie, name, child) for name, (cookie, child) in self.inode(ino).names.items())
        later = [entry for entry in listed if entry[0] > after_cookie]
        return [DirectoryEntry(cookie, name, self.inode(child).attributes()) for cookie, name, child in later[:limit]]

    async def fsync_directory(self, ino: int) -> None:
        self.requests["fsync directory"] += 1

    # files

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[FakeFile, Attributes]:
        inode = self._make(parent, name, mode, caller)
        return FakeFile(self, inode), inode.attributes()

    async def open(self, ino: int, flags: int) -> FakeFile:
        inode = self.inode(ino)
        if flags & os.O_TRUNC:
            inode.data.clear()
            inode.touch()
        return FakeFile(self, inode)

    # extended attributes

    async def getxattr(self, ino: int, name: bytes) -> bytes:
        self.requests["getxattr"] += 1
        try:
            return self.inode(ino).xattrs[name]
        except KeyError:
            raise AttributeNotFound(f"no attribute {name!r}") from None

    async def setxattr(self, ino: int, name: bytes, value: bytes) -> None:
        self.inode(ino).xattrs[name] = value

    async def listxattr(self, ino: int) -> list[bytes]:
        return list(self.inode(ino).xattrs)

    async def removexattr(self, ino: int, name: bytes) -> None:
        if self.inode(ino).xattrs.pop(name, None) is None:
            raise AttributeNotFound(f"no attribute {name!r}")

    async def path_of(self, ino: int) -> bytes:
        return b"path of %d" % ino

    async def statfs(self) -> Space:
        return Space(total_bytes=1 << 30, free_bytes=1 << 29, available_bytes=1 << 28, files=1000, files_free=900)
