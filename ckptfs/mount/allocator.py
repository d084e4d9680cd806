"""glibc's allocator, told to keep the memory of request buffers.

Each write request brings a ``bytes`` of up to 1 MiB, and a burst of them is freed together once it is in the image. By
default glibc then gives the memory back to the kernel, and the next burst faults it in again, page by page: 256 faults
for each MiB. Measured over a null filesystem holding 32 requests at a time: 2.6 million faults and 6.1 s of CPU for 10
GiB, against 8,500 faults and 2.2 s with these settings.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_KEPT_BYTES = 128 << 20
"""What the heap may keep beyond its use: more than the buffers of a burst, less than half of the daemon's 300 MiB."""

_MAPPED_FROM_BYTES = 16 << 20
"""Larger than any request or chunk, so that these come from the heap; glibc refuses more than 32 MiB."""


def keep_buffers() -> None:
    """Set it for this process. Does nothing with a C library that is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
    mallopt(_M_ARENA_MAX, 2)  # each arena keeps its own, and a buffer is always freed to the arena that it came from
