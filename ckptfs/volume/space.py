"""Space: what is free, reserving it before bytes are accepted, and freeing what the removal log keeps.

A write reserves its space in the lanes before it is accepted, so a full device fails the write that did not fit, and no later one. Each
stripe keeps a reserve: bytes of large files stop there, while small files, and the metadata, may use half of it, so that a pointer file can
still be written, and anything renamed or removed, on a full volume.

When space runs out, what the removal log keeps goes, oldest first: everything is sealed, so that nothing is held, then the undelete
window ends early. When space is plentiful, records go as their window ends.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

import trio

from ckptfs.image.image import Image
from ckptfs.meta import inodes, removals
from ckptfs.meta.database import Database
from ckptfs.volume import reclaim
from ckptfs.volume.attributes import Space
from ckptfs.volume.stripes import Stripe, space_of_all
from ckptfs.volume.threads import Threads, unforeseen

log = logging.getLogger(__name__)

_SMALL_FILE_BYTES = 64 << 10
"""Files up to here may use half of the reserve: markers, pointers, configurations."""
_AHEAD_BYTES = 64 << 20
"""With less than this left over, reserve exactly what a write needs."""
_EXPIRE_EVERY_S = 10.0
_RELIEF_BYTES = 256 << 20
"""Free at least this much at once when space runs out, so that relief is not sought for every write."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_INODES = 1 << 32


class SpaceGuard:
    """Space on the stripes of one open volume."""

    def __init__(self, stripes: Sequence[Stripe], database: Database, threads: Threads, window_s: float) -> None:
        self._stripes = stripes
        self._database = database
        self._threads = threads
        self._window_s = window_s
        self._relieving = trio.Lock()
        self._seal_everything: Callable[[], Awaitable[None]] | None = None
        self._busy: Callable[[], set[int]] = set
        self._known: Callable[[], set[int]] = set

    def attach(
        self,
        seal_everything: Callable[[], Awaitable[None]],
        busy: Callable[[], set[int]],
        known: Callable[[], set[int]],
    ) -> None:
        """Say how to seal everything, which inodes the kernel knows (``known``), and which must not be freed because the
        kernel knows them or they are live (``busy``).
        """
        self._seal_everything = seal_everything
        self._busy = busy
        self._known = known

    async def reserve(self, image: Image, offset: int, count: int, file_bytes: int) -> None:
        """Reserve ``count`` bytes at ``offset`` in the lanes, freeing what may be freed if need be.

        Raises ``OSError`` (ENOSPC, EDQUOT) when there is no room even then.
        """
        small = max(file_bytes, offset + count) <= _SMALL_FILE_BYTES
        try:
            await self._threads.device(self._reserve_now, image, offset, count, small)
        except OSError as why:
            if why.errno not in _FULL or not await self._relieve(count):
                raise
            await self._threads.device(self._reserve_now, image, offset, count, small)

    def _reserve_now(self, image: Image, offset: int, count: int, small: bool) -> None:
        left = min(self._room(stripe, small) for stripe in self._stripes if stripe.path in image.stripes)
        if left < count:
            raise OSError(errno.ENOSPC, f"the stripes have {max(left, 0)} bytes left above their reserve")
        image.reserve(offset, count, ahead=left - count > _AHEAD_BYTES)

    def _room(self, stripe: Stripe, small: bool) -> int:
        return stripe.space(from_reserve_bytes=stripe.reserve_bytes // 2 if small else 0).available

    async def _relieve(self, count: int) -> bool:
        """Free space; False when nothing could be freed."""
        before_ns = time.time_ns()
        async with self._relieving:
            if self._seal_everything is not None:
                await self._seal_everything()
            freed = await self._reclaim(before_ns, 0.0, max(count, _RELIEF_BYTES))
        if freed:
            log.warning(
                "out of space: %d removed or replaced contents were freed before their undelete window ended", freed
            )
        return freed > 0

    async def expire(self) -> None:
        """Free what is past the undelete window, for ever, every few seconds."""
        while True:
            await trio.sleep(_EXPIRE_EVERY_S)
            try:
                while await self._reclaim(time.time_ns(), self._window_s, None):
                    pass
            except Exception as why:  # a task that ended here would end the mount with it
                log.error("freeing removed contents: %s; trying again", why, exc_info=unforeseen(why))

    async def _reclaim(self, now_ns: int, window_s: float, wanted_bytes: int | None) -> int:
        busy = self._busy()
        count = await self._threads.metadata(
            lambda: self._database.transact(
                reclaim.drop_some, now_ns=now_ns, window_s=window_s, wanted_bytes=wanted_bytes, busy_inodes=busy
            )
        )
        if count:
            await self._threads.device(reclaim.finish, self._database, [stripe.path for stripe in self._stripes])
        return count

    async def statfs(self) -> Space:
        """What ``df`` shows. Bytes that only the removal log keeps count as free: a write that needs them gets them."""
        return await self._threads.device(self._statfs_now, self._known())

    def _statfs_now(self, known: set[int]) -> Space:
        paths = [stripe.path for stripe in self._stripes]
        kept = self._database.transact(removals.images_kept, known)
        freeable = sum(reclaim.allocated_bytes(image, paths) for image in kept)
        room = space_of_all(self._stripes)
        free = min(room.total, room.available + freeable)
        files = self._database.transact(inodes.count)
        return Space(
            total_bytes=room.total, free_bytes=free, available_bytes=free, files=_INODES, files_free=_INODES - files
        )
