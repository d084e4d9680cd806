"""Where the volume's blocking calls run: thread limits, so that one kind of work never starves another.

The event loop makes no system call that can wait for a device. Metadata transactions queue for one thread, in order; only
freeing and reports make theirs in a ``device`` thread, between its other work. Barriers, lane writes, lane reads, and all that a device is
slow at each have their own threads: a read never waits behind a flush.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import trio

from ckptfs.errors import CkptfsError

P = ParamSpec("P")
T = TypeVar("T")

_READ_THREADS = 32
"""Enough for the kernel's read-ahead over all stripes at once (1 MiB requests)."""


def unforeseen(why: Exception) -> bool:
    """Whether an error of a background task is worth a traceback: it is neither a device's nor one of ckptfs's own."""
    return not isinstance(why, OSError | CkptfsError)


class Threads:
    """The thread limits of one open volume."""

    def __init__(self, stripe_count: int) -> None:
        self._metadata = trio.CapacityLimiter(1)
        self._barrier = trio.CapacityLimiter(2)
        self._write = trio.CapacityLimiter(max(4, 2 * stripe_count))
        self._read = trio.CapacityLimiter(_READ_THREADS)
        self._device = trio.CapacityLimiter(max(4, 2 * stripe_count))

    async def metadata(self, call: Callable[..., T], *args: object) -> T:
        """A transaction."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._metadata)

    async def barrier(self, call: Callable[..., T], *args: object) -> T:
        """A barrier: one running, and one that will cover everybody who came meanwhile."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._barrier)

    async def write(self, call: Callable[..., T], *args: object) -> T:
        """Bytes to a lane."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._write)

    async def read(self, call: Callable[..., T], *args: object) -> T:
        """Bytes from lanes."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._read)

    async def device(self, call: Callable[..., T], *args: object) -> T:
        """Flushes, truncates, reservations, unlinks, and reports that look at lanes: slow, few."""
        return await trio.to_thread.run_sync(call, *args, limiter=self._device)
