"""Where a byte of a file lies: arithmetic only, no I/O.

Chunk *i* of an image of width *w* lies in lane *(first + i) mod w* at offset *(i div w) × chunk size*. So the bytes of
a lane are in file order, the part of a lane that belongs to a range of the file is a range too, and the lane sizes give
the file size back, up to holes at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes contiguous both in the file and in one lane. Offsets and length in bytes."""

    lane: int
    lane_offset: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The placement of one image: chunk size in bytes, number of lanes, and the lane of chunk 0."""

    chunk_size: int
    width: int
    first: int

    def __post_init__(self) -> None:
        if self.chunk_size <= 0 or self.width <= 0 or not 0 <= self.first < self.width:
            raise ValueError(f"no such layout: chunk size {self.chunk_size}, width {self.width}, first {self.first}")

    def spans(self, offset: int, length: int) -> Iterator[Span]:
        """The spans of a range of the file, in file order; a width-1 image has one however long the range."""
        if length <= 0:
            return
        if self.width == 1:
            yield Span(0, offset, offset, length)
            return
        end = offset + length
        while offset < end:
            chunk, within = divmod(offset, self.chunk_size)
            take = min(self.chunk_size - within, end - offset)
            row = chunk // self.width
            yield Span((self.first + chunk) % self.width, row * self.chunk_size + within, offset, take)
            offset += take

    def lane_size(self, lane: int, file_size: int) -> int:
        """How many of a file's first ``file_size`` bytes lie in ``lane``; so also where in it the next ones begin."""
        chunks, tail = divmod(file_size, self.chunk_size)
        turn = (lane - self.first) % self.width
        whole = max(0, (chunks - turn + self.width - 1) // self.width)
        return whole * self.chunk_size + (tail if chunks % self.width == turn else 0)

    def size_implied_by(self, lane_sizes: Sequence[int]) -> int:
        """The file size of which lanes of these sizes hold the last byte: the inverse of :meth:`lane_size`.

        Lanes that ended early hold holes; a hole at the end of the file leaves no trace and is not counted.
        """
        return max((self._end_in_file(lane, size) for lane, size in enumerate(lane_sizes)), default=0)

    def prefix_held_by(self, lane_sizes: Sequence[int]) -> int:
        """How many first bytes of the file lanes of these sizes hold without a gap, each lane having none."""
        return min(self._next_in_file(lane, size) for lane, size in enumerate(lane_sizes))

    def _next_in_file(self, lane: int, lane_size: int) -> int:
        row, within = divmod(lane_size, self.chunk_size)
        chunk = row * self.width + (lane - self.first) % self.width
        return chunk * self.chunk_size + within

    def _end_in_file(self, lane: int, lane_size: int) -> int:
        if lane_size <= 0:
            return 0
        row, within = divmod(lane_size - 1, self.chunk_size)
        chunk = row * self.width + (lane - self.first) % self.width
        return chunk * self.chunk_size + within + 1
