"""Sealing: making generations durable and final, on request and in the background.

The order is the rule of docs/crash-consistency.md: lanes, their directories, then the commit. A seal looks at the write counter
when the bytes it will flush have landed, and again in the commit: writes that came in between leave the generation landing,
unsealed since a tick that was taken before anything was flushed.

In the background, closed files are sealed once nothing was written for a moment (so that the flush of one shard does not slow
the save of the next), at the latest after a few seconds; files held open, every ten seconds.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import trio
from sqlalchemy import Connection

from ckptfs import faults
from ckptfs.image.image import Image
from ckptfs.image.syscalls import syncfs
from ckptfs.meta import generations, inodes, names, removals
from ckptfs.meta.database import Database
from ckptfs.meta.schema import State
from ckptfs.volume.landing import Landing
from ckptfs.volume.live import LiveFile
from ckptfs.volume.threads import Threads, unforeseen

log = logging.getLogger(__name__)

_QUIET_S = 0.5
_CLOSED_AT_MOST_S = 5.0
_OPEN_EVERY_S = 10.0
_RETRY_S = 5.0
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""What a flush may fail with before it has touched a byte."""
_SYNCFS_FROM_FILES = 16
"""From this many files on, one flush of the whole filesystem is cheaper than one of each file."""


@dataclass(frozen=True, slots=True)
class _Begun:
    file: LiveFile
    generation: int
    writes: int
    cuts: int
    size: int
    image: Image | None


class Sealer:
    """Seals the files of a :class:`Landing`."""

    def __init__(self, landing: Landing, database: Database, threads: Threads, stripes: Sequence[Path]) -> None:
        self._landing = landing
        self._database = database
        self._threads = threads
        self._stripes = stripes
        self._sealing_retired = trio.Lock()

    async def barrier(self) -> None:
        """Return when every commit made so far is on disk."""
        if self._database.needs_barrier():
            await self._threads.barrier(self._database.barrier)

    async def seal(self, files: Sequence[LiveFile], *, final: bool) -> None:
        """Seal what the files hold now. ``final``: an fsync or the unmount asks, so the content counts as finished.

        Raises ``OSError`` when a file's bytes could not be written; the other files are sealed all the same.
        """
        for file in files:
            async with file.transition:  # a seal that is committing says sealed before it is
                pass
        due = [file for file in files if file.state is State.LANDING]
        if not due:
            return
        tick = await self._landing.transact(generations.next_tick)
        begun: list[_Begun] = []
        for file in due:
            await file.wait_landed()
            if file.error is None:
                # Nothing may await between here and the wait above: the counter speaks of landed bytes.
                begun.append(_Begun(file, file.generation, file.writes, file.cuts, file.size, file.image))
        faults.hit("seal.begin")
        failed = await self._flush([one.image for one in begun if one.image is not None])
        faults.hit("seal.lanes-flushed")
        for one in begun:
            why = failed.get(one.image)
            if why is None:
                await self._commit(one, tick, final)
            elif why.errno not in _SHORTAGES:
                one.file.fail(one.generation, why)
        faults.hit("seal.committed")
        for file in due:
            await self._landing.let_go(file)
        for file in due:
            file.check()
        for why in failed.values():
            raise why  # a shortage: nothing is lost, and a later seal may succeed

    async def seal_retired(self) -> None:
        """Seal generations that were replaced before they were sealed."""
        async with self._sealing_retired:
            retired = self._landing.retired[:]
            failed = await self._flush([one.image for one in retired if one.image is not None])
            for one in retired:
                why = failed.get(one.image)
                if why is not None and why.errno in _SHORTAGES:
                    continue
                if why is not None:
                    log.error("generation %d, replaced, cannot be made durable: %s", one.generation, why)
                    await self._landing.transact(_drop_retired, one.generation)
                else:
                    sizes = [] if one.image is None else await self._threads.device(one.image.lane_sizes)
                    await self._landing.transact(_commit_retired, one.generation, one.size, sizes)
                self._landing.retired.remove(one)

    async def seal_everything(self, *, final: bool) -> None:
        """Seal every live file and every retired generation, and make it durable. Damaged files are logged and skipped."""
        try:
            await self.seal(self._landing.unsealed(), final=final)
        except OSError as why:
            log.error("sealing: %s", why)
        await self.seal_retired()
        await self.barrier()

    async def run(self) -> None:
        """Seal in the background, for ever."""
        while True:
            await trio.sleep(_QUIET_S / 2)
            due = self._due(time.monotonic())
            if not due and not self._landing.retired:
                continue
            try:
                await self.seal(due, final=False)
                await self.seal_retired()
                await self.barrier()
                await self._threads.device(self._database.fold_log)
            except Exception as why:  # a task that ended here would end the mount with it
                log.error(
                    "sealing in the background: %s; trying again in %g s", why, _RETRY_S, exc_info=unforeseen(why)
                )
                await trio.sleep(_RETRY_S)

    def _due(self, now_s: float) -> list[LiveFile]:
        quiet = now_s - self._landing.last_write_s > _QUIET_S
        due: list[LiveFile] = []
        for file in self._landing.unsealed():
            if file.error is not None:
                continue  # reported already; it stays unsealed until it is written anew or unlinked
            if file.writers or file.buffered_bytes:
                if file.size and now_s - file.dirty_since_s > _OPEN_EVERY_S:
                    due.append(file)
            elif quiet or now_s - file.closed_at_s > _CLOSED_AT_MOST_S:
                due.append(file)
        return due

    async def _flush(self, images: list[Image]) -> dict[Image | None, OSError]:
        """Flush lanes and their directories; returns what failed."""
        if len(images) >= _SYNCFS_FROM_FILES:
            return await self._threads.device(_flush_filesystems, self._stripes, images)
        failed: dict[Image | None, OSError] = {}
        async with trio.open_nursery() as nursery:
            for image in images:
                nursery.start_soon(self._flush_one, image, failed)
        return failed

    async def _flush_one(self, image: Image, failed: dict[Image | None, OSError]) -> None:
        try:
            await self._threads.device(image.sync)
        except OSError as why:
            failed[image] = why

    async def _commit(self, one: _Begun, tick: int, final: bool) -> None:
        file = one.file
        async with file.transition:
            if file.generation != one.generation or file.state is not State.LANDING:
                return
            complete = file.writes == one.writes and not file.buffered_bytes
            if complete and not file.size and file.writers:
                if final:
                    await self._landing.transact(_acknowledge_empty, file.generation, file.ino)
                return
            if not complete:
                file.dirty_since_s = time.monotonic()
                if file.cuts != one.cuts:
                    return  # the bytes that were flushed may be cut, and others in their place
                # A FLUSH that came meanwhile has committed a later size, which must stand.
                size = file.size if file.flushed else min(one.size, file.size)
                await self._landing.transact(_commit_part, one, size, tick, file.flushed, final)
                return
            flushed = file.flushed
            file.state = State.SEALED
            # Without a handle, unflushed means torn: a crash took its writer, and a seal does not make it whole.
            file.flushed = flushed or (final and bool(file.readers or file.writers))
            file.times_changed = False
            lane_sizes = [] if one.image is None else await self._threads.device(one.image.lane_sizes)
            try:
                await self._landing.transact(_commit_whole, file, lane_sizes)
            except BaseException:
                file.state = State.LANDING
                file.flushed = flushed
                raise
            if file.state is State.SEALED:
                self._landing.sealed(file)


def _flush_filesystems(stripes: Sequence[Path], images: Sequence[Image]) -> dict[Image | None, OSError]:
    covered = [image.unsynced() for image in images]
    try:
        faults.hit("lane.fsync")
        for stripe in stripes:
            syncfs(stripe)
    except OSError as why:
        return dict.fromkeys(images, why)
    failed: dict[Image | None, OSError] = {}
    for image, lanes in zip(images, covered, strict=True):
        try:
            image.synced(lanes)
        except OSError as why:
            failed[image] = why
    return failed


def _commit_whole(connection: Connection, file: LiveFile, lane_sizes: list[int]) -> None:
    generations.set_sealed(
        connection,
        file.generation,
        size=file.size,
        sealed_size=file.size,
        unsealed_since=None,
        flushed=file.flushed,
    )
    generations.set_lane_sizes(connection, file.generation, lane_sizes)
    if file.flushed:
        removals.acknowledge_replacement(connection, file.generation)
    inodes.set_times(connection, file.ino, file.atime_ns, file.mtime_ns, file.ctime_ns)


def _commit_part(connection: Connection, one: _Begun, size: int, tick: int, flushed: bool, final: bool) -> None:
    generations.set_sealed(
        connection,
        one.generation,
        size=size,
        sealed_size=min(one.size, size),
        unsealed_since=tick,
        flushed=flushed,
    )
    if final:  # an fsync: what it covers must survive, so what it replaced must not come back
        removals.acknowledge_replacement(connection, one.generation)


def _commit_retired(connection: Connection, generation: int, size: int, lane_sizes: list[int]) -> None:
    if generations.find(connection, generation) is not None:
        generations.set_sealed(connection, generation, size=size, sealed_size=size, unsealed_since=None, flushed=True)
        generations.set_lane_sizes(connection, generation, lane_sizes)
        removals.acknowledge_replacement(connection, generation)


def _drop_retired(connection: Connection, generation: int) -> None:
    """Its bytes are lost: what it had replaced is what its successor replaces."""
    record = removals.of_generation(connection, generation)
    if record is not None and record.winner is not None:
        removals.set_winner(connection, generation, record.winner)
        removals.remove(connection, record.tick)
    generations.remove(connection, generation)


def _acknowledge_empty(connection: Connection, generation: int, ino: int) -> None:
    named = names.of_inode(connection, ino)
    if named:
        generations.acknowledge_empty(connection, generation, named[0].parent, named[0].name)
        removals.acknowledge_replacement(connection, generation)
