"""An open volume: what the mount and the admin tool call.

:func:`open_volume` builds the parts, recovers after a crash, and on leaving seals everything. :class:`Volume` puts the parts
together and holds what belongs to none of them: the kernel's lookup counts, and which names an fsync has yet to make final.

Concurrency: everything runs on one trio loop, blocking calls run in threads (``threads.py``). A change of names is one transaction, and
transactions of the loop run one at a time in order, so they need no lock here. Code between two awaits is atomic: what must be consistent
with a transaction is changed right after its await, with no other await between. The locks, outermost first: ``SpaceGuard`` has one for
relief, ``Sealer`` one for retired generations, each live file has ``transition`` (``live.py``).
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import trio
from sqlalchemy import Connection

from ckptfs import config as volume_config
from ckptfs import faults
from ckptfs.config import VolumeConfig
from ckptfs.errors import (
    AttributeNotFound,
    DamagedData,
    InvalidArgument,
    IsADirectory,
    NameExists,
    NameNotFound,
    NotPermitted,
    ProtectedData,
    ReadOnlyVolume,
)
from ckptfs.image.placement import Placement
from ckptfs.meta import generations, inodes, names, removals, runs
from ckptfs.meta.database import Database
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.schema import State
from ckptfs.volume import history, inspection, namespace
from ckptfs.volume.attributes import (
    AttributeChange,
    Attributes,
    Caller,
    DirectoryEntry,
    RenameMode,
    Space,
)
from ckptfs.volume.format import METADATA_NAME, refuse_missing_metadata
from ckptfs.volume.handles import OpenFile
from ckptfs.volume.instance import boot_id, current_instance
from ckptfs.volume.landing import Landing
from ckptfs.volume.live import LiveFile
from ckptfs.volume.lock import VolumeLock, stripe_locks
from ckptfs.volume.recovery import recover
from ckptfs.volume.reports import FileInfo, PreviousVersion, RemovedName, VolumeStatus
from ckptfs.volume.seal import Sealer
from ckptfs.volume.space import SpaceGuard
from ckptfs.volume.stripes import IDENTITY_NAME, Stripe, open_stripes
from ckptfs.volume.threads import Threads

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_OWN_XATTRS = b"user.ckptfs."


@asynccontextmanager
async def open_volume(directory: Path, *, read_only: bool = False) -> AsyncGenerator[Volume, None]:
    """Open the volume in ``directory`` for this process alone; on leaving, everything is sealed and the volume is clean.

    Recovers first when the last run did not end cleanly. Raises :class:`RefusedError` (in use, wrong stripe, bad volume.toml, newer
    schema) and :class:`DamagedData`.
    """
    config = volume_config.load(directory)
    with VolumeLock.acquire(directory), ExitStack() as held:
        stripes = open_stripes(config)
        held.enter_context(stripe_locks([stripe.path / IDENTITY_NAME for stripe in stripes]))
        refuse_missing_metadata(directory)
        database = await trio.to_thread.run_sync(Database.open, directory / METADATA_NAME)
        try:
            instance = current_instance([directory, *(stripe.path for stripe in stripes)])
            run_id = await trio.to_thread.run_sync(_begin_run, database, stripes, instance)
            async with trio.open_nursery() as nursery:
                volume = Volume(directory, config, read_only, nursery, database, stripes)
                nursery.start_soon(volume.sealer.run)
                nursery.start_soon(volume.space.expire)
                await volume.adopt_unsealed()
                try:
                    yield volume
                finally:
                    with trio.CancelScope(shield=True):
                        await volume.sealer.seal_everything(final=True)
                        faults.hit("unmount.sealed")
                        if not volume.landing.unsealed():
                            await volume.transact(runs.end_clean, run_id)
                        await volume.sealer.barrier()
                    nursery.cancel_scope.cancel()
        finally:
            database.close()


def _begin_run(database: Database, stripes: list[Stripe], instance: str | None) -> int:
    last = database.transact(runs.last)
    if last is not None and not last.clean:
        damage = database.integrity_errors(quickly=True)
        if damage:
            raise DamagedData(f"the metadata database is damaged: {damage[0]}; nothing was changed, see ckptfs fsck")
        same = instance is not None and instance == last.instance
        report = recover(database, [stripe.path for stripe in stripes], same, time.time_ns())
        log.warning("the last run of this volume did not end cleanly; recovered: %s", report)
    run_id = database.transact(runs.begin, instance, time.time_ns())
    database.barrier()
    return run_id


class Volume:
    """See the module docstring; the methods are the contract of ``mount/contract.py`` and what the admin server needs."""

    def __init__(
        self,
        directory: Path,
        config: VolumeConfig,
        read_only: bool,
        nursery: trio.Nursery,
        database: Database,
        stripes: list[Stripe],
    ) -> None:
        self.directory = directory
        self.config = config
        self.read_only = read_only
        self.stripes = stripes
        self._database = database
        self._threads = Threads(len(stripes))
        self.space = SpaceGuard(stripes, database, self._threads, config.space.undelete_window_s)
        width = None if config.volume.width == "auto" else config.volume.width
        self.landing = Landing(
            nursery=nursery,
            database=database,
            threads=self._threads,
            space=self.space,
            stripes=stripes,
            chunk_bytes=config.volume.chunk_size,
            placement=Placement(len(stripes), width),
            boot_id=boot_id(),
        )
        self.sealer = Sealer(self.landing, database, self._threads, [stripe.path for stripe in stripes])
        self.space.attach(self._seal_for_space, self._busy_inodes, self._known_inodes)
        self._lookups: Counter[int] = Counter()
        self._invalidate: tuple[Callable[[int], Awaitable[None]], Callable[[int, bytes], Awaitable[None]]] | None = None
        self._unacknowledged_winners: set[int] = set()
        self._unacknowledged_directories: set[int] = set()

    async def transact(self, action: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One transaction; see :meth:`Database.transact`."""
        return await self._threads.metadata(lambda: self._database.transact(action, *args, **kwargs))

    async def adopt_unsealed(self) -> None:
        """Queue for sealing what a killed daemon left landing, and remember which changes of names an fsync has yet to make final."""
        for row in await self.transact(generations.landing):
            if row.current:
                await self.landing.enliven(row.ino)
            else:
                self.landing.retire(row)
        winners, directories = await self.transact(removals.unacknowledged)
        self._unacknowledged_winners, self._unacknowledged_directories = winners, directories

    # Names

    async def lookup(self, parent: int, name: bytes) -> Attributes:
        """What ``name`` in ``parent`` means; counts a lookup."""
        row = await self.transact(namespace.the_named, parent, name)
        self._lookups[row.ino] += 1
        return self._attributes(row)

    def remember(self, ino: int) -> None:
        """Count a lookup that a directory listing made."""
        self._lookups[ino] += 1

    def forget(self, ino: int, count: int) -> None:
        """Take ``count`` lookups back."""
        self._lookups[ino] -= count
        if self._lookups[ino] <= 0:
            del self._lookups[ino]

    async def getattr(self, ino: int) -> Attributes:
        """The attributes of an inode."""
        return self._attributes(await self.transact(namespace.the_inode, ino))

    async def readlink(self, ino: int) -> bytes:
        """The target of a symbolic link."""
        row = await self.transact(namespace.the_inode, ino)
        if row.target is None:
            raise InvalidArgument(f"inode {ino} is not a symbolic link")
        return row.target

    async def readdir(self, ino: int, after_cookie: int, limit: int) -> list[DirectoryEntry]:
        """Up to ``limit`` entries after a readdir position; fewer at the end. ``.`` and ``..`` are the caller's."""
        rows = await self.transact(names.page, ino, after_cookie, limit)
        return [DirectoryEntry(entry.cookie, entry.name, self._attributes(row)) for entry, row in rows]

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Attributes:
        """Make a regular file or a special file; counts a lookup."""
        return await self._make(parent, name, mode, caller, rdev=rdev)

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Attributes:
        """Make a directory; counts a lookup."""
        return await self._make(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), caller)

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Attributes:
        """Make a symbolic link; counts a lookup."""
        return await self._make(parent, name, stat.S_IFLNK | 0o777, caller, target=target)

    async def _make(
        self, parent: int, name: bytes, mode: int, caller: Caller, *, rdev: int = 0, target: bytes | None = None
    ) -> Attributes:
        self._check_writable()
        row, generation = await self.transact(
            namespace.create, parent, name, mode, caller, time.time_ns(), rdev=rdev, target=target
        )
        self._lookups[row.ino] += 1
        if generation is not None:
            self.landing.born(row, generation)
        faults.hit("names.committed")
        return self._attributes(row)

    async def link(self, ino: int, parent: int, name: bytes) -> Attributes:
        """Give an inode one more name; counts a lookup."""
        self._check_writable()
        now_ns = time.time_ns()
        row = await self.transact(namespace.link, ino, parent, name, now_ns)
        self._lookups[ino] += 1
        self._changed(ino, now_ns)
        faults.hit("names.committed")
        return self._attributes(row)

    async def unlink(self, parent: int, name: bytes) -> None:
        """Remove a name; the content stays in the removal log."""
        self._check_writable()
        now_ns = time.time_ns()
        ino = await self.transact(namespace.unlink, parent, name, now_ns)
        self._changed(ino, now_ns)
        self._unacknowledged_directories.add(parent)
        faults.hit("names.committed")

    async def rmdir(self, parent: int, name: bytes) -> None:
        """Remove an empty directory."""
        self._check_writable()
        await self.transact(namespace.rmdir, parent, name, time.time_ns())
        self._unacknowledged_directories.add(parent)
        faults.hit("names.committed")

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, mode: RenameMode) -> None:
        """Move a name. What was written to the file is in its image first, so that a failed write is reported here."""
        self._check_writable()
        moved = await self.transact(namespace.the_named, parent, name)
        file = self.landing.find(moved.ino)
        if file is not None:
            await file.flush()
        now_ns = time.time_ns()
        changed = await self.transact(namespace.rename, parent, name, new_parent, new_name, mode, now_ns)
        for ino in changed:
            self._changed(ino, now_ns)
        self._unacknowledged_directories |= {parent, new_parent}
        self._unacknowledged_winners |= changed
        faults.hit("names.committed")

    # Attributes

    async def setattr(self, ino: int, change: AttributeChange) -> Attributes:
        """Change attributes and size. Raises ``OSError`` when the size cannot be changed."""
        self._check_writable()
        if change.size is not None:
            await self._set_size(ino, change.size)
        now_ns = time.time_ns()
        columns = {
            name: value
            for name, value in (
                ("uid", change.uid),
                ("gid", change.gid),
                ("atime_ns", change.atime_ns),
                ("mtime_ns", change.mtime_ns if change.mtime_ns is not None or change.size is None else now_ns),
            )
            if value is not None
        }
        row = await self.transact(_set_attributes, ino, columns, change.mode, now_ns)
        file = self.landing.find(ino)
        if file is not None:
            file.ctime_ns = now_ns
            file.atime_ns = columns.get("atime_ns", file.atime_ns)
            file.mtime_ns = columns.get("mtime_ns", file.mtime_ns)
        return self._attributes(row)

    async def _set_size(self, ino: int, size: int) -> None:
        row = await self.transact(namespace.the_inode, ino)
        if not row.is_regular:
            raise IsADirectory(f"inode {ino} has no size to set") if row.is_directory else InvalidArgument("not a file")
        file = await self.landing.enliven(ino)
        file.writers += 1  # keeps it live; it counts as a writer while its size changes
        try:
            if size == 0 and file.readers + file.writers == 1:
                await file.start_generation()
            else:
                await file.truncate(size)
        finally:
            file.writers -= 1
        if not file.writers:
            await file.flush()
        await self.landing.released(file)

    async def getxattr(self, ino: int, name: bytes) -> bytes:
        """An extended attribute; ``user.ckptfs.*`` say how the file is doing."""
        if name.startswith(_OWN_XATTRS):
            return await self._own_xattr(ino, name.removeprefix(_OWN_XATTRS))
        value = await self.transact(inodes.get_xattr, ino, name)
        if value is None:
            raise AttributeNotFound(f"inode {ino} has no {name!r}")
        return value

    async def listxattr(self, ino: int) -> list[bytes]:
        """Names of extended attributes. Those of ckptfs are not listed: a copy must not try to carry them along."""
        return await self.transact(inodes.list_xattrs, ino)

    async def setxattr(self, ino: int, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        self._check_writable()
        if name.startswith(_OWN_XATTRS):
            raise NotPermitted(f"{name!r} cannot be set")
        now_ns = time.time_ns()
        await self.transact(inodes.set_xattr, ino, name, value, now_ns)
        self._changed(ino, now_ns)

    async def removexattr(self, ino: int, name: bytes) -> None:
        """Remove an extended attribute."""
        self._check_writable()
        now_ns = time.time_ns()
        if not await self.transact(inodes.remove_xattr, ino, name, now_ns):
            raise AttributeNotFound(f"inode {ino} has no {name!r}")
        self._changed(ino, now_ns)

    async def _own_xattr(self, ino: int, name: bytes) -> bytes:
        if name == b"state":
            file = self.landing.find(ino)
            state = await self.transact(inspection.state_of, ino)
            if file is not None and file.state is State.LANDING:
                state = State.LANDING
            if state is not None:
                await self.sealer.barrier()  # who reads "sealed" counts on it
                return state.value.encode()
        if name == b"remote":
            return b"0"
        raise AttributeNotFound(f"inode {ino} has no {_OWN_XATTRS + name!r}")

    # Files

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[OpenFile, Attributes]:
        """Make and open a regular file; counts a lookup."""
        self._check_writable()
        try:
            made = await self._make(parent, name, stat.S_IFREG | stat.S_IMODE(mode), caller)
        except NameExists:
            # The kernel thought the name free. Without O_EXCL that is an open of what came first.
            if flags & os.O_EXCL:
                raise
            made = await self.lookup(parent, name)
        return await self.open(made.ino, flags), made

    async def open(self, ino: int, flags: int) -> OpenFile:
        """Open a regular file; O_TRUNC starts a new generation when nobody else has it open, and truncates it otherwise."""
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if writes or flags & os.O_TRUNC:
            self._check_writable()
        file = await self.landing.enliven(ino)
        alone = not (file.readers or file.writers)
        opened = OpenFile(self, file, flags)
        if flags & os.O_TRUNC:
            try:
                if alone:
                    await file.start_generation()
                else:
                    await file.truncate(0)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await opened.release()
                raise
        return opened

    async def released(self, file: LiveFile) -> None:
        """A handle of the file went."""
        await self.landing.released(file)

    async def fsync(self, file: LiveFile) -> None:
        """P-fsync-file: content, size and name survive loss of power."""
        file.check()
        await self.sealer.seal([file], final=True)
        if file.ino in self._unacknowledged_winners:
            await self.transact(removals.acknowledge, winner=file.ino)
            self._unacknowledged_winners.discard(file.ino)
        await self.sealer.barrier()

    async def fsync_directory(self, ino: int) -> None:
        """P-fsync-dir: its names survive, and the files they name are sealed."""
        unsealed = self.landing.unsealed_inodes()
        if unsealed:
            named = await self.transact(names.unsealed_in, ino, unsealed)
            if ino in self._unacknowledged_directories:
                # What was renamed from here lies elsewhere, and its leaving becomes final: it must not have to come back.
                named |= await self.transact(removals.unacknowledged_winners, ino)
            await self.sealer.seal([file for file in self.landing.unsealed() if file.ino in named], final=True)
        if ino in self._unacknowledged_directories:
            self._unacknowledged_directories.discard(ino)
            await self.transact(removals.acknowledge, directory=ino)
        await self.sealer.barrier()

    async def seal_all(self) -> None:
        """Seal every file, durably."""
        await self.sealer.seal_everything(final=True)

    # Space, reports, history

    async def statfs(self) -> Space:
        """Space, as ``df`` shows it."""
        return await self.space.statfs()

    async def status(self) -> VolumeStatus:
        """What ``ckptfs status`` shows."""
        return await self._threads.device(
            inspection.status, self._database, self.directory, self.config, self.stripes, self.landing.open_counts()
        )

    async def file_info(self, path: bytes) -> FileInfo:
        """What ``ckptfs info`` shows of the regular file at ``path``. Raises :class:`NameNotFound`."""
        info = await self._threads.device(inspection.file_info, self._database, self.stripes, path, self.landing.find)
        await self.sealer.barrier()  # who reads "sealed" counts on it
        return info

    async def previous(self, path: bytes) -> list[PreviousVersion]:
        """Contents that ``path`` had before and that are still there, newest first."""
        return await self.transact(history.previous_versions, path, self.config.space.undelete_window_s)

    async def removed(self, path: bytes) -> list[RemovedName]:
        """Names removed from the directory ``path``, or the removed name ``path``, newest first."""
        return await self.transact(history.removed_names, path, self.config.space.undelete_window_s)

    async def resolve(self, path: bytes) -> int:
        """The inode at ``path``, relative to the root; symbolic links are not followed. Raises :class:`NameNotFound`."""
        row = await self.transact(names.resolve, path)
        if row is None:
            raise NameNotFound(f"there is no {os.fsdecode(path)!r} in the volume")
        return row.ino

    async def path_of(self, ino: int) -> bytes:
        """One path of the inode from the root; empty when it has no name."""
        return await self.transact(names.path_of_inode, ino)

    async def restore_previous(self, path: bytes) -> None:
        """Give ``path`` its newest sealed previous content back; what is there now goes into the removal log.

        Raises :class:`ProtectedData` while the file is open, :class:`NameNotFound` when nothing is kept.
        """
        self._check_writable()
        ino = await self.transact(history.current_inode, path)
        if ino is not None:
            await self._put_to_rest(ino)
        changed = await self.transact(history.restore_previous, path, time.time_ns())
        await self._changed_behind_the_kernel(changed)

    async def undelete(self, path: bytes) -> list[bytes]:
        """Bring back what was removed at ``path``, with everything below it; returns the paths that came back."""
        self._check_writable()
        changed = await self.transact(history.undelete, path, time.time_ns())
        await self._changed_behind_the_kernel(changed)
        return changed.paths

    def attach_kernel(
        self,
        invalidate_inode: Callable[[int], Awaitable[None]],
        invalidate_entry: Callable[[int, bytes], Awaitable[None]],
    ) -> None:
        """Say how to make a kernel forget what it cached, for changes that it did not ask for."""
        self._invalidate = (invalidate_inode, invalidate_entry)

    # Inside

    async def _put_to_rest(self, ino: int) -> None:
        """Seal a file that nobody has open and let its live object go. Raises :class:`ProtectedData` when somebody has."""
        file = self.landing.find(ino)
        if file is None:
            return
        await self.sealer.seal([file], final=True)
        await self.landing.let_go(file)
        if self.landing.find(ino) is not None:
            raise ProtectedData("the file is open; close it in the programs that use it and try again")

    async def _changed_behind_the_kernel(self, changed: history.Changed) -> None:
        await self.sealer.barrier()
        if self._invalidate is not None:
            invalidate_inode, invalidate_entry = self._invalidate
            for ino in changed.inodes:
                await invalidate_inode(ino)
            for parent, name in changed.names:
                await invalidate_entry(parent, name)

    def _attributes(self, row: InodeRow) -> Attributes:
        file = self.landing.find(row.ino) if row.is_regular else None
        size = row.size if file is None else file.size
        if row.is_directory:
            size = 4096
        return Attributes(
            ino=row.ino,
            mode=row.mode,
            nlink=row.nlink,
            uid=row.uid,
            gid=row.gid,
            rdev=row.rdev,
            size=size,
            blocks=-(-size // 512) if row.is_regular or row.is_directory else 0,
            atime_ns=row.atime_ns if file is None else file.atime_ns,
            mtime_ns=row.mtime_ns if file is None else file.mtime_ns,
            ctime_ns=row.ctime_ns if file is None else file.ctime_ns,
        )

    def _changed(self, ino: int, now_ns: int) -> None:
        file = self.landing.find(ino)
        if file is not None:
            file.ctime_ns = now_ns

    def _check_writable(self) -> None:
        if self.read_only:
            raise ReadOnlyVolume("the volume is mounted read-only")

    def _known_inodes(self) -> set[int]:
        return set(self._lookups)

    def _busy_inodes(self) -> set[int]:
        return self.landing.busy() | self._known_inodes()

    async def _seal_for_space(self) -> None:
        await self.sealer.seal_everything(final=False)


def _set_attributes(
    connection: Connection, ino: int, columns: dict[str, int], mode: int | None, now_ns: int
) -> InodeRow:
    row = namespace.the_inode(connection, ino)
    if mode is not None:
        columns = columns | {"mode": stat.S_IFMT(row.mode) | stat.S_IMODE(mode)}
    inodes.set_columns(connection, ino, columns | {"ctime_ns": now_ns})
    return namespace.the_inode(connection, ino)
