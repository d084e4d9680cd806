"""Kernel requests as calls on a volume: one short method per request, and no state but the open handles.

Whatever a request means for data is decided below; what is decided here is what only the kernel cares about:

- **Which cache a handle uses.** ``O_WRONLY`` handles get ``direct_io``: requests of 1 MiB, and several times the GB/s
  of writing through the page cache. The kernel refuses MAP_SHARED on such a handle, so a handle that may read uses the
  page cache, which all readers of a file share. ``O_DIRECT`` readers asked for no cache and get none.
- **O_SYNC.** On a ``direct_io`` handle the kernel sends no FSYNC after a write, so the write itself syncs.
- **How long the kernel may believe an answer** (:data:`TRUSTED_S`).
- **Extended attributes**: ``user.*``, and ``trusted.*`` for root, go to the volume. The other namespaces are refused
  without asking it: the kernel looks for ``security.capability`` before each write through the page cache. "Not
  supported" rather than "no such attribute", since ``ls`` then stops asking for ACLs and capabilities, and ``cp -a``,
  ``rsync`` and ``tar`` do without them.

Must not know: images, stripes, metadata, the session that serves it. Nothing but ``FUSEError`` leaves a method.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass

import pyfuse3

from ckptfs.errors import InvalidArgument, NameTooLong, NotSupported
from ckptfs.mount.contract import Buffer, ServedFile, ServedVolume
from ckptfs.mount.errno import answered, report
from ckptfs.mount.handles import DirectoryStream, HandleTable, OpenHandle, SyncOnWrite
from ckptfs.volume.attributes import AttributeChange, Attributes, Caller, RenameMode

TRUSTED_S = 60.0
"""How long the kernel believes attributes and names. Every change passes through this mount, and the few that do not
(admin commands) are announced, so it could be for ever; a minute bounds what a lost announcement costs. That a name
does *not* exist is never cached: it would save little and is where other filesystems show ghosts.
"""

NAME_BYTES = 255
"""The longest name. The kernel passes longer ones on, so they are refused here."""

IO_BYTES = 128 << 10
"""``st_blksize``: the buffer of C stdio and of Python's ``open()``. Larger than 4 KiB because each flush of it is one
request; not a whole request of 1 MiB, because a buffered reader reads that much for each small read after a seek.
"""

_RENAME_MODES = {
    0: RenameMode.REPLACE,
    pyfuse3.RENAME_NOREPLACE: RenameMode.NO_REPLACE,
    pyfuse3.RENAME_EXCHANGE: RenameMode.EXCHANGE,
}


@dataclass(frozen=True, slots=True)
class Presentation:
    """Owner and permissions to show in place of the stored ones, as the ``uid=``, ``gid=`` and ``umask=`` options ask.

    The kernel checks access against what is shown. ``chmod`` and ``chown`` still change what is stored. With a umask
    every entry shows mode 0777 without the umask's bits, as other FUSE filesystems do.
    """

    uid: int | None = None
    gid: int | None = None
    umask: int | None = None

    def mode(self, stored: int) -> int:
        return stored if self.umask is None else stat.S_IFMT(stored) | 0o777 & ~self.umask


class Operations(pyfuse3.Operations):
    """The request handlers, over any volume that fulfils the contract."""

    supports_dot_lookup = False  # lookups of "." and ".." are only for NFS exports, and the volume has no such names

    def __init__(self, volume: ServedVolume, presentation: Presentation | None = None) -> None:
        super().__init__()
        self._volume = volume
        self._presentation = presentation or Presentation()
        self._files: HandleTable[OpenHandle] = HandleTable()
        self._directories: HandleTable[DirectoryStream] = HandleTable()

    def inode_of(self, fh: int) -> int | None:
        """The inode open under a handle number, for log messages."""
        opened = self._files.get(fh) or self._directories.get(fh)
        return opened and opened.ino

    async def path_of(self, inode: int) -> bytes:
        """A path of the inode, for log messages."""
        return await self._volume.path_of(inode)

    # names

    @answered
    async def lookup(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        _check_name(name)
        return self._shown(await self._volume.lookup(parent_inode, name))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        for inode, count in inode_list:
            try:
                self._volume.forget(inode, count)
            except Exception as why:  # noqa: BLE001  # there is no request to answer, and the mount must live
                report(f"forget inode {inode} count {count}", why)

    @answered
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        _check_name(name)
        return self._shown(await self._volume.mknod(parent_inode, name, mode, rdev, _caller(ctx)))

    @answered
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        _check_name(name)
        return self._shown(await self._volume.mkdir(parent_inode, name, mode, _caller(ctx)))

    @answered
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        _check_name(name)
        return self._shown(await self._volume.symlink(parent_inode, name, target, _caller(ctx)))

    @answered
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        _check_name(new_name)
        return self._shown(await self._volume.link(inode, new_parent_inode, new_name))

    @answered
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        _check_name(name)
        await self._volume.unlink(parent_inode, name)

    @answered
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        _check_name(name)
        await self._volume.rmdir(parent_inode, name)

    @answered
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        _check_name(name_old)
        _check_name(name_new)
        mode = _RENAME_MODES.get(flags)
        if mode is None:
            raise InvalidArgument(f"rename with flags {flags:#x}")
        await self._volume.rename(parent_inode_old, name_old, parent_inode_new, name_new, mode)

    @answered
    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        return await self._volume.readlink(inode)

    # attributes

    @answered
    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return self._shown(await self._volume.getattr(inode))

    @answered
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        change = AttributeChange(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        return self._shown(await self._volume.setattr(inode, change))

    @answered
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        space = await self._volume.statfs()
        shown = pyfuse3.StatvfsData()
        shown.f_bsize = shown.f_frsize = 4096
        shown.f_blocks = space.total_bytes // 4096
        shown.f_bfree = space.free_bytes // 4096
        shown.f_bavail = space.available_bytes // 4096
        shown.f_files = space.files
        shown.f_ffree = shown.f_favail = space.files_free
        shown.f_namemax = NAME_BYTES
        return shown

    # extended attributes

    @answered
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        _check_namespace(name)
        return await self._volume.getxattr(inode, name)

    @answered
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        _check_namespace(name)
        await self._volume.setxattr(inode, name, value)

    @answered
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        names = await self._volume.listxattr(inode)
        # as on ext4: the kernel lets nobody but root read them, and hides their values but not their names
        return names if ctx.uid == 0 else [name for name in names if not name.startswith(b"trusted.")]

    @answered
    async def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        _check_namespace(name)
        await self._volume.removexattr(inode, name)

    # files

    @answered
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        _check_name(name)
        file, attributes = await self._volume.create(parent_inode, name, mode, flags, _caller(ctx))
        return self._opened(file, flags), self._shown(attributes)

    @answered
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return self._opened(await self._volume.open(inode, flags), flags)

    @answered
    async def read(self, fh: int, off: int, size: int) -> Buffer:  # pyright: ignore[reportIncompatibleMethodOverride]  # pyfuse3 takes any buffer and declares bytes
        file = self._files[fh].file
        found = file.read_nowait(off, size)
        return await file.read(off, size) if found is None else found

    @answered
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        handle = self._files[fh]
        written = await handle.file.write(off, buf)
        if handle.sync_on_write is not SyncOnWrite.NOTHING:
            await handle.file.fsync(handle.sync_on_write is SyncOnWrite.DATA)
        return written

    @answered
    async def flush(self, fh: int) -> None:
        await self._files[fh].file.flush()

    @answered
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._files[fh].file.fsync(datasync)

    @answered
    async def release(self, fh: int) -> None:
        await self._files.remove(fh).file.release()

    # directories

    @answered
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return self._directories.add(DirectoryStream(inode))

    @answered
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        stream = self._directories[fh]
        entries = await self._volume.readdir(stream.ino, start_id, stream.page_entries)
        taken = 0
        for entry in entries:
            if not pyfuse3.readdir_reply(token, entry.name, self._shown(entry.attributes), entry.cookie):
                break
            self._volume.remember(entry.attributes.ino)
            taken += 1
        stream.learn(taken, len(entries))

    @answered
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._volume.fsync_directory(self._directories[fh].ino)

    @answered
    async def releasedir(self, fh: int) -> None:
        self._directories.remove(fh)

    # answers

    def _opened(self, file: ServedFile, flags: int) -> pyfuse3.FileInfo:
        access = flags & os.O_ACCMODE
        uncached = access == os.O_WRONLY or (access == os.O_RDONLY and bool(flags & os.O_DIRECT))
        # the kernel itself sends an FSYNC after each O_SYNC write through the page cache
        sync = SyncOnWrite.asked_by(flags) if uncached else SyncOnWrite.NOTHING
        number = self._files.add(OpenHandle(file, sync))
        # What was cached before stays true: every change passes through the kernel, which drops the pages of a direct write
        # (Linux 6.7) or of a file whose mtime moved, and the admin tool's changes are announced.
        return pyfuse3.FileInfo(fh=number, direct_io=uncached, keep_cache=True)

    def _shown(self, attributes: Attributes) -> pyfuse3.EntryAttributes:
        presentation = self._presentation
        shown = pyfuse3.EntryAttributes()
        shown.st_ino = attributes.ino
        shown.entry_timeout = TRUSTED_S
        shown.attr_timeout = TRUSTED_S
        shown.st_mode = presentation.mode(attributes.mode)
        shown.st_nlink = attributes.nlink
        shown.st_uid = attributes.uid if presentation.uid is None else presentation.uid
        shown.st_gid = attributes.gid if presentation.gid is None else presentation.gid
        shown.st_rdev = attributes.rdev
        shown.st_size = attributes.size
        shown.st_blksize = IO_BYTES
        shown.st_blocks = attributes.blocks
        shown.st_atime_ns = attributes.atime_ns
        shown.st_mtime_ns = attributes.mtime_ns
        shown.st_ctime_ns = attributes.ctime_ns
        return shown


def _caller(ctx: pyfuse3.RequestContext) -> Caller:
    return Caller(uid=ctx.uid, gid=ctx.gid)


def _check_name(name: bytes) -> None:
    if len(name) > NAME_BYTES:
        raise NameTooLong(f"a name of {len(name)} bytes; {NAME_BYTES} is the most")


def _check_namespace(name: bytes) -> None:
    if not name.startswith((b"user.", b"trusted.")):
        raise NotSupported("extended attributes outside user.* and trusted.*")
