"""The set of live files of an open volume, and what they share: buffer, threads, placement, transactions.

Owns which inodes are live, how one becomes live and when it is let go, and which are unsealed. Knows no names and no FUSE.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import trio
from sqlalchemy import Connection

from ckptfs.image.image import Image
from ckptfs.image.layout import Layout
from ckptfs.image.placement import Placement
from ckptfs.meta import generations
from ckptfs.meta.database import Database
from ckptfs.meta.generations import GenerationRow, ImageRow
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.schema import State
from ckptfs.volume import live
from ckptfs.volume.buffer import WriteBuffer
from ckptfs.volume.live import LiveFile, Retired
from ckptfs.volume.space import SpaceGuard
from ckptfs.volume.stripes import Stripe
from ckptfs.volume.threads import Threads

_SCRATCH_BYTES = 1 << 20
"""The largest read that the kernel asks for."""

P = ParamSpec("P")
T = TypeVar("T")


class Landing:
    """The live files. Created by ``volume.py`` with the parts it names."""

    def __init__(
        self,
        *,
        nursery: trio.Nursery,
        database: Database,
        threads: Threads,
        space: SpaceGuard,
        stripes: Sequence[Stripe],
        chunk_bytes: int,
        placement: Placement,
        boot_id: str,
    ) -> None:
        self.threads = threads
        self.space = space
        self.buffer = WriteBuffer(len(stripes), chunk_bytes)
        self.retired: list[Retired] = []
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.last_write_s = time.monotonic()
        self._nursery = nursery
        self._database = database
        self._stripes = stripes
        self._chunk_bytes = chunk_bytes
        self._placement = placement
        self._boot_id = boot_id
        self._owner = socket.gethostname()
        self._files: dict[int, LiveFile] = {}
        self._unsealed: dict[int, LiveFile] = {}

    # What live files use

    async def transact(self, action: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """One transaction, in the metadata thread."""
        return await self.threads.metadata(lambda: self._database.transact(action, *args, **kwargs))

    def start_soon(self, call: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run a task of the volume."""
        self._nursery.start_soon(call, *args)

    def stripe_paths(self, numbers: Sequence[int]) -> list[Path]:
        """The directories of these stripes."""
        return [self._stripes[number].path for number in numbers]

    def add_image(self, connection: Connection, generation: int) -> ImageRow:
        """Record a new image: one stripe, in turn; it may become wider when its second chunk is written."""
        return generations.add_image(
            connection,
            generation,
            chunk_size=self._chunk_bytes,
            first=0,
            stripes=(self._placement.next_first(),),
            owner=self._owner,
            boot_id=self._boot_id,
        )

    def stripes_for(self, first: int, file: LiveFile) -> tuple[int, ...]:
        """The stripes of a file whose chunk 0 is on stripe ``first`` and whose second chunk is about to be written."""
        others = sum(1 for other in self._unsealed.values() if other.writers and other is not file)
        return self._placement.stripes_for(first, others)

    def lane_failed(self, stripe: Path, why: OSError) -> None:
        """A device failed: ``ckptfs status`` shows it."""
        for known in self._stripes:
            if known.path == stripe:
                known.note_problem(why)

    def retire(self, row: GenerationRow) -> None:
        """A killed daemon left this generation replaced and unsealed: queue it for sealing."""
        image = None
        if row.image is not None:
            layout = Layout(row.image.chunk_size, len(row.image.stripes), row.image.first)
            image = Image(row.image.id, layout, self.stripe_paths(row.image.stripes))
        self.retired.append(Retired(row.id, row.size, image))

    def start_lanes(self) -> None:
        """Begin to write whatever is buffered for any file: somebody needs the memory."""
        for file in self._unsealed.values():
            file.start_lanes()

    def track(self, file: LiveFile) -> None:
        """The file is unsealed."""
        self._unsealed[file.ino] = file

    def wrote(self, file: LiveFile) -> None:
        """A write was accepted."""
        self.last_write_s = time.monotonic()
        if file.ino not in self._unsealed:
            self._unsealed[file.ino] = file

    # What the volume uses

    def find(self, ino: int) -> LiveFile | None:
        """The live file of an inode, if it is live."""
        return self._files.get(ino)

    def busy(self) -> set[int]:
        """Inodes that are live."""
        return set(self._files)

    def unsealed(self) -> list[LiveFile]:
        """Live files with something to seal."""
        return list(self._unsealed.values())

    def unsealed_inodes(self) -> set[int]:
        """Their inodes."""
        return set(self._unsealed)

    async def enliven(self, ino: int) -> LiveFile:
        """The live file of a regular file's inode, made when there is none. Raises :class:`StaleInode`."""
        found = self._files.get(ino)
        if found is not None:
            return found
        made = LiveFile(self, *await self.transact(live.load, ino))
        if made.image is not None and made.state is not State.LANDING:
            await self.threads.device(made.find_damage)
        # Another open may have come first while this one waited. From here to the caller's handle nothing awaits.
        found = self._files.get(ino)
        if found is None:
            found = self._files[ino] = made
            if found.state is State.LANDING:
                self.track(found)
        return found

    def born(self, inode: InodeRow, generation: GenerationRow) -> None:
        """A file was just made: it is live, and no metadata needs to be read to open it."""
        if inode.ino not in self._files:
            file = self._files[inode.ino] = LiveFile(self, inode, generation)
            self.track(file)

    async def released(self, file: LiveFile) -> None:
        """A handle went: give back reserved space with the last writer, and let the file go when nothing is left."""
        if not file.writers:
            file.closed_at_s = time.monotonic()
            await file.give_back_space()
        await self.let_go(file)

    async def let_go(self, file: LiveFile) -> None:
        """Drop the object if it is idle."""
        if file.idle:
            await file.save_times()
        if file.idle and self._files.get(file.ino) is file:  # still idle after the await
            del self._files[file.ino]
            file.close()

    def sealed(self, file: LiveFile) -> None:
        """Nothing of the file is left to seal."""
        self._unsealed.pop(file.ino, None)

    def open_counts(self) -> tuple[int, int]:
        """How many files are open for reading only, and for writing."""
        readers = sum(1 for file in self._files.values() if file.readers and not file.writers)
        return readers, sum(1 for file in self._files.values() if file.writers)
