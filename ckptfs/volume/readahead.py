"""Reading ahead on all stripes at once, for one open file.

The kernel's window on the mount is a few MiB, mostly less than a chunk, so a sequential reader would keep one device busy
at a time and the others idle: N stripes would read like one. Here, a sequential reader of a wide image has the next chunk
of every lane on its way into the page cache: one task a lane, one piece after the other, in threads.

An image of one lane needs none of this: its lane is a file read in order, and the kernel's own read-ahead serves that.

A read of bytes whose piece is queued or under way waits for the piece; reading them beside it would fetch them twice. Nothing is
read ahead until a read missed the page cache, so bytes that were just written cost nothing, nor after a jump until the reader
has gone on from there for :data:`_PIECE_BYTES`.

What went wrong is not kept: the read of these bytes meets the same error, and has somebody to tell.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from ckptfs.image.image import Image
from ckptfs.volume.landing import Landing

_PIECE_BYTES = 2 << 20
"""What one thread hop asks for: two requests of FUSE, and what the kernel asks of a device at once for WILLNEED."""


@dataclass(slots=True)
class _Lane:
    pieces: deque[int] = field(default_factory=deque[int])
    busy: bool = False


class ReadAhead:
    """The reader of one handle: where it is, and what is on its way for it. Offsets and sizes in bytes of the file."""

    def __init__(self, landing: Landing) -> None:
        self._landing = landing
        self._next = 0
        self._run_bytes = 0
        self._asked_to = 0
        self._missed = False
        self._lanes: dict[int, _Lane] = {}
        self._coming: dict[int, trio.Event] = {}

    def hit(self, image: Image | None, offset: int, size: int, file_size: int) -> None:
        """These bytes were read from memory."""
        if self._missed:
            self._follow(image, offset, size, file_size)

    def miss(self, image: Image | None, offset: int, size: int, file_size: int) -> None:
        """These bytes were not in memory."""
        self._missed = True
        self._follow(image, offset, size, file_size)

    async def wait(self, offset: int, size: int) -> None:
        """Wait until no piece with one of these bytes is on its way."""
        for piece in range(offset // _PIECE_BYTES, (offset + size - 1) // _PIECE_BYTES + 1):
            coming = self._coming.get(piece)
            if coming is not None:
                await coming.wait()

    async def stop(self) -> None:
        """Ask for nothing more, and wait for what is under way: the lanes may be closed after this."""
        for lane in self._lanes.values():
            while lane.pieces:
                self._coming.pop(lane.pieces.popleft()).set()
        for coming in list(self._coming.values()):
            await coming.wait()

    def _follow(self, image: Image | None, offset: int, size: int, file_size: int) -> None:
        if image is None or image.layout.width == 1:
            return
        # The kernel has several requests of one reader under way, so they come a little out of order.
        near = max(image.layout.chunk_size, _PIECE_BYTES)
        if not self._next - near <= offset <= self._next + near:
            self._next, self._run_bytes, self._asked_to = offset, 0, 0
        self._run_bytes += size
        self._next = max(self._next, offset + size)
        if self._run_bytes < _PIECE_BYTES:
            return
        window = image.layout.width * image.layout.chunk_size
        first = -(-max(self._asked_to, self._next) // _PIECE_BYTES)
        end = min(file_size, self._next + window)
        for piece in range(first, -(-end // _PIECE_BYTES)):
            self._ask(image, piece)
        self._asked_to = max(self._asked_to, end)

    def _ask(self, image: Image, piece: int) -> None:
        if piece in self._coming:
            return
        number = next(iter(image.layout.spans(piece * _PIECE_BYTES, 1))).lane
        lane = self._lanes.setdefault(number, _Lane())
        lane.pieces.append(piece)
        self._coming[piece] = trio.Event()
        if not lane.busy:
            lane.busy = True
            self._landing.start_soon(self._fetch, image, lane)

    async def _fetch(self, image: Image, lane: _Lane) -> None:
        try:
            while lane.pieces:
                piece = lane.pieces.popleft()
                try:
                    with suppress(OSError):
                        await self._landing.threads.read(image.read_ahead, piece * _PIECE_BYTES, _PIECE_BYTES)
                finally:
                    self._coming.pop(piece).set()
        finally:
            lane.busy = False
