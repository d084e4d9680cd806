"""One regular file while it is open or not yet sealed: its size and times, its buffered bytes, its image.

Exactly one :class:`LiveFile` exists for such an inode, and it is the authority on size and times; the metadata follows.

The write path, and its rules
-----------------------------
``write`` returns when the bytes are in memory (``buffer.py`` bounds it) and everything that can fail for lack of space is done:

1. the generation is landing and not flushed in the *metadata* (dirty mark), with an image row;
2. the image is as wide as it will be (decided when the second chunk is first touched, see ``image/placement.py``);
3. the space is reserved in the lanes;
4. the bytes fit the buffer.

Each of the four may await; after any await all are looked at again, so when the loop ends all four hold *now*, and the bytes are
queued without another await. Each lane has one queue and at most one task that empties it, in order: overlapping writes hit
the same lane, so the last one wins, and different lanes are written at once. An error of a lane sticks to the generation: every later
write, flush, fsync and rename of it fails with the same errno, and every read where accepted bytes were lost, until a new
generation starts.

``transition`` serialises what changes the state of the generation (dirty mark, flushed mark, truncate, O_TRUNC, the commit of a seal,
widening) or its reserved space. The metadata never says more than is true, and that sets the order in each. Where it comes to say *more*
(flushed mark, seal), the state in memory changes *before* the commit is awaited: a write that comes meanwhile sees the new state, and
queues for ``transition`` to change it back. Where it comes to say *less*, no byte may come first: writes wait for the commit of the dirty
mark, and during truncate and O_TRUNC, which first let what is buffered land.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from ckptfs import faults
from ckptfs.errors import DamagedData, StaleInode
from ckptfs.image.image import Image
from ckptfs.image.layout import Layout
from ckptfs.meta import generations, inodes, removals
from ckptfs.meta.generations import GenerationRow, ImageRow
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.schema import State
from ckptfs.volume import namespace

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ckptfs.volume.landing import Landing

log = logging.getLogger(__name__)

_BATCH_BYTES = 8 << 20
"""What a lane's task writes in one thread hop at most."""
_START_BYTES = 4 << 20
"""A lane is not written before this much waits for it, or somebody waits for it: a thread hop costs as much as copying half a MiB."""


@dataclass(frozen=True, slots=True)
class Retired:
    """A generation that was replaced before it was sealed. It still has to be: until then it holds the removal log."""

    generation: int
    size: int
    image: Image | None


@dataclass(slots=True)
class _Lane:
    waiting: deque[tuple[int, bytes | memoryview]] = field(default_factory=deque[tuple[int, bytes | memoryview]])
    busy: bool = False
    accepted_bytes: int = 0
    landed_bytes: int = 0
    taken_bytes: int = 0

    @property
    def waiting_bytes(self) -> int:
        return self.accepted_bytes - self.taken_bytes


class LiveFile:
    """See the module docstring. The rest of ``volume`` reads the attributes.

    Only this module and ``seal.py`` write what describes the generation; handles count themselves in ``readers`` and ``writers``,
    the landing sets ``closed_at_s``, and the volume the times of a ``setattr`` or a change of names.
    """

    def __init__(self, landing: Landing, inode: InodeRow, generation: GenerationRow) -> None:
        self.ino = inode.ino
        self.atime_ns = inode.atime_ns
        self.mtime_ns = inode.mtime_ns
        self.ctime_ns = inode.ctime_ns
        self.times_changed = False
        self.readers = 0
        self.writers = 0
        self.transition = trio.Lock()
        self._resizing = False
        self.dirty_since_s = time.monotonic()
        self.closed_at_s = time.monotonic()
        self._landing = landing
        self._landed = trio.lowlevel.ParkingLot()
        self._awaited = 0
        self._show(generation)

    def _show(self, generation: GenerationRow) -> None:
        self.generation = generation.id
        self.state = generation.state
        self.flushed = generation.flushed
        self.size = generation.size
        self.error: OSError | None = None
        self.damage = ""
        self.writes = 0
        self.cuts = 0
        self.buffered_bytes = 0
        self.image: Image | None = None
        self.image_row = generation.image
        self.width_decided = generation.image is not None and (
            len(generation.image.stripes) > 1 or generation.size > generation.image.chunk_size
        )
        self._lanes: list[_Lane] = []
        if generation.image is not None:
            self._open_image(generation.image, new=False)

    def _open_image(self, row: ImageRow, *, new: bool) -> None:
        self.image_row = row
        layout = Layout(row.chunk_size, len(row.stripes), row.first)
        self.image = Image(row.id, layout, self._landing.stripe_paths(row.stripes), new=new)
        self._lanes = [_Lane() for _ in row.stripes]

    @property
    def idle(self) -> bool:
        """Nothing is open, buffered or unsealed: the object may go."""
        return not (self.readers or self.writers or self.buffered_bytes) and self.state is not State.LANDING

    # Writing

    async def write(self, offset: int, data: bytes) -> int:
        """Accept ``data`` at ``offset`` (bytes); returns its length. Raises ``OSError`` (ENOSPC, EIO, ...)."""
        count = len(data)
        if not count:
            return 0
        buffer = self._landing.buffer
        while True:
            self._check_sound()
            if self._resizing:
                async with self.transition:  # what is accepted before the cut must not land after it
                    continue
            image = self.image
            if image is None or self.flushed or self.state is not State.LANDING:
                await self._begin_landing()
            elif not self.width_decided and offset + count > image.layout.chunk_size:
                await self._decide_width()
            elif image.needs_reserve(offset, count):
                await self._landing.space.reserve(image, offset, count, self.size)
            elif buffer.try_take(count):
                break
            else:
                self._landing.start_lanes()
                await buffer.wait_returned()
        # No await from here to the end.
        view = memoryview(data)
        for span in image.layout.spans(offset, count):
            start = span.offset - offset
            lane = self._lanes[span.lane]
            lane.waiting.append((span.lane_offset, view[start : start + span.length]))
            lane.accepted_bytes += span.length
            if lane.waiting_bytes >= _START_BYTES:
                self._start(image, span.lane, lane)
        self.buffered_bytes += count
        self.size = max(self.size, offset + count)
        self._changed()
        faults.hit("landing.accepted")
        if not image.reserves:
            # Nothing was reserved, so only the write itself can tell that the device is full.
            await self.wait_landed()
            self.check()
        return count

    def _changed(self) -> None:
        self.writes += 1
        self.mtime_ns = self.ctime_ns = time.time_ns()
        self._landing.wrote(self)

    def _touch(self) -> None:
        """Set the times of a change that alters no byte: truncating what has that size already."""
        self.mtime_ns = self.ctime_ns = time.time_ns()
        self.times_changed = True

    def start_lanes(self) -> None:
        """Begin to write whatever is buffered, however little."""
        if self.image is not None:
            for number, lane in enumerate(self._lanes):
                self._start(self.image, number, lane)

    def _start(self, image: Image, number: int, lane: _Lane) -> None:
        if lane.waiting and not lane.busy:
            lane.busy = True
            self._landing.start_soon(self._empty_lane, image, number, lane)

    async def _empty_lane(self, image: Image, number: int, lane: _Lane) -> None:
        while True:
            runs: list[tuple[int, list[bytes | memoryview]]] = []
            count = 0
            end = -1
            while lane.waiting and count < _BATCH_BYTES:
                lane_offset, piece = lane.waiting.popleft()
                if lane_offset == end:
                    runs[-1][1].append(piece)
                else:
                    runs.append((lane_offset, [piece]))
                end = lane_offset + len(piece)
                count += len(piece)
            lane.taken_bytes += count
            try:
                await self._landing.threads.write(_write_runs, image, number, runs)
            except OSError as why:
                stripe = image.stripes[number]
                self._landing.lane_failed(stripe, why)
                if image is self.image:
                    at = f"writing lane {number} on {stripe} at {runs[0][0]}: {why.strerror}"
                    self.fail(self.generation, OSError(why.errno, at))
            finally:
                lane.landed_bytes += count
                if image is self.image:
                    self.buffered_bytes -= count
                self._landing.buffer.give_back(count)
                self._landed.unpark_all()
            if not lane.waiting or not (self._awaited or lane.waiting_bytes >= _START_BYTES):
                break
        lane.busy = False

    def fail(self, generation: int, why: OSError) -> None:
        """The device lost bytes of a generation: if it is still the one shown, the error sticks to it."""
        if generation != self.generation or self.error is not None:
            return
        self.error = why
        if self.image is not None and (self.image.reserves or why.errno not in (errno.ENOSPC, errno.EDQUOT)):
            self.damage = why.strerror or ""  # bytes whose write was answered: reads would take the loss for a hole
        log.error("inode %d: %s; its content is damaged until it is written anew", self.ino, why)

    def _repeat_error(self) -> OSError:
        assert self.error is not None
        return OSError(self.error.errno, os.strerror(self.error.errno or 0))

    async def wait_landed(self) -> None:
        """Wait until the bytes that are buffered now are in the image. More may be buffered when it returns."""
        targets = [(lane, lane.accepted_bytes) for lane in self._lanes]
        self._awaited += 1
        try:
            while any(lane.landed_bytes < accepted for lane, accepted in targets):
                self.start_lanes()
                await self._landed.park()
        finally:
            self._awaited -= 1

    def check(self) -> None:
        """Raise the error that sticks to the generation, if there is one."""
        if self.error is not None:
            raise self._repeat_error()

    def _check_sound(self) -> None:
        """Raise when the content has lost bytes: a change in place would make the loss look like a hole."""
        self.check()
        if self.damage:
            raise DamagedData(self.damage)

    async def _begin_landing(self) -> None:
        async with self.transition:
            if self.image is not None and not self.flushed and self.state is State.LANDING:
                return
            was_sealed = self.state is not State.LANDING
            if was_sealed:
                self.dirty_since_s = time.monotonic()
            row = await self._landing.transact(_begin_landing, self, was_sealed)
            self.state = State.LANDING
            self.flushed = False
            self._landing.track(self)
            if row is not None:
                faults.hit("image.created")
                self._open_image(row, new=True)
        faults.hit("landing.dirty-marked")

    def new_image(self, connection: Connection) -> ImageRow:
        """Record an image for the generation, in the transaction that marks it dirty."""
        return self._landing.add_image(connection, self.generation)

    async def _decide_width(self) -> None:
        # Bytes of chunk 0 may be on their way meanwhile: lane 0 is the same file at any width.
        async with self.transition:
            if self.width_decided or self.image is None or self.image_row is None:
                return
            old = self.image_row
            stripes = self._landing.stripes_for(old.stripes[0], self)
            if len(stripes) > 1:
                await self._landing.transact(generations.widen_image, old.id, 0, stripes)
                self.image_row = ImageRow(old.id, old.chunk_size, 0, stripes)
                self.image.widen(Layout(old.chunk_size, len(stripes), 0), self._landing.stripe_paths(stripes))
                self._lanes += [_Lane() for _ in stripes[1:]]
            self.width_decided = True

    # Reading

    def read_nowait(self, offset: int, size: int) -> bytes | memoryview | None:
        """Bytes from memory, fewer at the end of the file; None when a thread is needed.

        The answer is valid until the next await: all such reads of a volume share one buffer, since allocating and clearing one
        costs a fifth of such a read.
        """
        if self.buffered_bytes or self.damage:
            return None
        count = min(size, self.size - offset)
        if count <= 0:
            return b""
        if self.image is None:
            return bytes(count)
        target = self._landing.scratch[:count]
        return target if len(target) == count and self.image.read_into_nowait(offset, target) else None

    async def read(self, offset: int, size: int) -> bytes | bytearray:
        """``size`` bytes at ``offset``, fewer at the end of the file. Raises ``OSError``."""
        await self.wait_landed()
        count = min(size, self.size - offset)
        if count <= 0:
            return b""
        if self.image is None:
            return bytes(count)
        if self.damage:
            raise DamagedData(self.damage)
        return await self._landing.threads.read(self.image.read, offset, count)

    def find_damage(self) -> None:
        """Note when a lane of a sealed image is shorter than it was sealed: reads would take the loss for a hole. Blocks."""
        if self.image is None or self.image_row is None or self.state is State.LANDING:
            return
        now = self.image.lane_sizes()
        for lane, (sealed_bytes, bytes_now) in enumerate(zip(self.image_row.lane_sizes, now, strict=False)):
            if bytes_now < sealed_bytes:
                stripe = self.image.stripes[lane]
                self.damage = (
                    f"inode {self.ino}: lane {lane} of image {self.image_row.id:016x} on {stripe} has {bytes_now} bytes and "
                    f"was sealed with {sealed_bytes}; run ckptfs fsck, and ckptfs previous for an earlier content"
                )
                log.error("%s", self.damage)

    def accessed(self) -> None:
        """Set atime, as ``relatime`` does: when it is not after the last change, or a day old."""
        now_ns = time.time_ns()
        if self.atime_ns <= max(self.mtime_ns, self.ctime_ns) or now_ns - self.atime_ns > 86_400 * 10**9:
            self.atime_ns = now_ns
            self.times_changed = True

    # Ends of writing

    async def flush(self) -> None:
        """Wait until the buffered bytes are in the image, then commit the flushed mark if one is due. Raises ``OSError``."""
        await self.wait_landed()
        self.check()
        async with self.transition:  # also when the mark is there: another FLUSH may be committing it
            if self.flushed or self.buffered_bytes:
                return
            faults.hit("landing.flushed")
            self.flushed = True
            self.times_changed = False
            try:
                # Sealed: by the clock, in a pause of its writer. Now it is finished.
                await self._landing.transact(
                    _commit_flush,
                    self.generation,
                    self.ino,
                    self.state is State.SEALED,
                    self.size,
                    self.atime_ns,
                    self.mtime_ns,
                    self.ctime_ns,
                )
            except BaseException:
                self.flushed = False
                raise
        faults.hit("landing.flush-committed")

    async def truncate(self, size: int) -> None:
        """Set the size (bytes) in place. A hole that this makes takes no space."""
        async with self.transition, self._without_writes():
            self._check_sound()
            if size == self.size:
                self._touch()
                return
            state, flushed = self.state, self.flushed
            if state is not State.LANDING:
                self.dirty_since_s = time.monotonic()
            shrinks = size < self.size
            self.state = State.LANDING
            self.flushed = False
            try:
                await self._landing.transact(_truncate, self.generation, state is not State.LANDING, size)
            except BaseException:
                self.state, self.flushed = state, flushed
                raise
            self.size = size
            self.cuts += shrinks
            self._changed()
            self._landing.track(self)
            if self.image is not None and shrinks:
                try:
                    await self._landing.threads.device(self.image.truncate, size)
                except OSError as why:
                    self.fail(self.generation, why)  # a lane may still hold what was cut
                    raise
        if not self.writers:
            await self.flush()

    @asynccontextmanager
    async def _without_writes(self) -> AsyncGenerator[None, None]:
        """Let what is buffered land, and keep writes waiting for ``transition``, which the caller holds."""
        self._resizing = True
        try:
            await self.wait_landed()
            yield
        finally:
            self._resizing = False

    async def give_back_space(self) -> None:
        """Free what was reserved and not written, unless somebody writes on."""
        if self.writers or self.image is None or self.state is not State.LANDING:
            return
        async with self.transition, self._without_writes():
            if self.writers:
                return
            try:
                await self._landing.threads.device(self.image.trim)
            except OSError as why:
                # It costs space and no byte: a flush that failed in it fails every seal of the image again.
                log.warning("inode %d: space reserved beyond its bytes stays taken: %s", self.ino, why)

    async def start_generation(self) -> None:
        """O_TRUNC with nobody else at the file: a new generation on a new image; the old one goes into the log."""
        async with self.transition, self._without_writes():
            if not self.size and self.image is None:
                self._touch()
                return
            retired = Retired(self.generation, self.size, self.image) if self.state is State.LANDING else None
            damaged = self.error is not None or bool(self.damage)
            now_ns = time.time_ns()
            row = await self._landing.transact(namespace.replace_generation, self.ino, now_ns, damaged)
            # The old image is closed when its last user lets go: a seal may be flushing it.
            self._show(row)
            self.mtime_ns = self.ctime_ns = now_ns
            self.dirty_since_s = time.monotonic()
            self._landing.track(self)
            if retired is not None and not damaged:
                self._landing.retired.append(retired)
        faults.hit("generation.replaced")

    async def save_times(self) -> None:
        """Commit a changed atime."""
        if self.times_changed:
            self.times_changed = False
            await self._landing.transact(inodes.set_times, self.ino, self.atime_ns, self.mtime_ns, self.ctime_ns)

    def close(self) -> None:
        """Close the lanes. The object is of no more use."""
        if self.image is not None:
            self.image.close()


def load(connection: Connection, ino: int) -> tuple[InodeRow, GenerationRow]:
    """What a :class:`LiveFile` starts from. Raises :class:`StaleInode`."""
    inode = inodes.find(connection, ino)
    generation = generations.current(connection, ino)
    if inode is None or generation is None:
        raise StaleInode(f"inode {ino} has no content any more")
    return inode, generation


def _write_runs(image: Image, lane: int, runs: list[tuple[int, list[bytes | memoryview]]]) -> None:
    for lane_offset, pieces in runs:
        image.write_span(lane, lane_offset, pieces)


def _begin_landing(connection: Connection, file: LiveFile, was_sealed: bool) -> ImageRow | None:
    if was_sealed:
        generations.mark_dirty(connection, file.generation)
    else:
        generations.set_flushed(connection, file.generation, flushed=False, size=file.size)
    # The kernel does this for writes through its page cache only.
    inodes.drop_setid(connection, file.ino)
    return file.new_image(connection) if file.image is None else None


def _commit_flush(
    connection: Connection,
    generation: int,
    ino: int,
    sealed: bool,
    size: int,
    atime_ns: int,
    mtime_ns: int,
    ctime_ns: int,
) -> None:
    generations.set_flushed(connection, generation, flushed=True, size=size)
    if sealed:
        removals.acknowledge_replacement(connection, generation)
    inodes.set_times(connection, ino, atime_ns, mtime_ns, ctime_ns)


def _truncate(connection: Connection, generation: int, was_sealed: bool, size: int) -> None:
    if was_sealed:
        generations.mark_dirty(connection, generation)
    generations.set_size(connection, generation, size)
    generations.set_flushed(connection, generation, flushed=False, size=size)
