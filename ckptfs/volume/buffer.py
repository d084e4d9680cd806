"""The memory that accepted writes may take until they are in their lanes.

One budget for the volume, in bytes. A write that does not fit waits: that is the back-pressure a fast trainer feels from a slow
device. No holder of buffered bytes ever needs more budget to get rid of them, so waiting cannot deadlock.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

_LEAST_BYTES = 32 << 20
_MOST_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class BufferStatistics:
    """How much of the budget is in use."""

    limit_bytes: int
    used_bytes: int
    writers_waiting: int


class WriteBuffer:
    """The budget."""

    def __init__(self, stripe_count: int, chunk_bytes: int) -> None:
        # A sequential writer fills one chunk before it reaches the next stripe: to keep all stripes busy the budget must hold
        # a chunk for each, and one being filled. Twice that measured no better (docs/benchmarks.md).
        self.limit_bytes = min(_MOST_BYTES, max(_LEAST_BYTES, (stripe_count + 1) * chunk_bytes))
        self._used_bytes = 0
        self._waiting = trio.lowlevel.ParkingLot()

    def try_take(self, count: int) -> bool:
        """Take ``count`` bytes if they fit, or if nothing is in use (a request larger than the budget must pass too)."""
        if self._used_bytes and self._used_bytes + count > self.limit_bytes:
            return False
        self._used_bytes += count
        return True

    async def wait_returned(self) -> None:
        """Wait until some bytes were given back."""
        await self._waiting.park()

    def give_back(self, count: int) -> None:
        """Return ``count`` bytes; everyone who waits tries again."""
        self._used_bytes -= count
        self._waiting.unpark_all()

    def statistics(self) -> BufferStatistics:
        """A snapshot."""
        return BufferStatistics(self.limit_bytes, self._used_bytes, self._waiting.statistics().tasks_waiting)
