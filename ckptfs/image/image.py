"""One image: the lanes of one file generation, read and written as one run of bytes.

The image knows no size of the file: a byte that no lane holds reads as zero, so a file that was made longer, or written
beyond its end, needs nothing here. Making a file shorter cuts every lane, so bytes that come back within its size are
zeros. Where several lanes are concerned they are changed one after the other; the caller orders writes of one file
against its cuts, punches, trims and widening. Reads, and writes of different lanes, may run at once.

An image is born with one lane and gets its width when its second chunk is written (:meth:`Image.widen`): chunk 0 lies
at offset 0 of the same lane at every width.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ckptfs.image.lane import Lane
from ckptfs.image.layout import Layout


class Image:
    """The striped copy of one file generation; ``stripes[k]`` is the stripe directory of lane *k*.

    Lane files are opened at their first use and created by their first write or reservation. ``new`` says that the
    image has no lanes yet, so a lane file found in the way is emptied. Lanes of an image that is not new are flushed by
    the first :meth:`sync` whoever wrote them: an earlier process may have left them unflushed.

    Every method that says nothing else may block, and raises the device's ``OSError`` as it is.
    """

    def __init__(
        self, image_id: int, layout: Layout, stripes: Sequence[Path], *, new: bool = False, writable: bool = True
    ) -> None:
        if len(stripes) != layout.width:
            raise ValueError(f"an image of width {layout.width} cannot lie on {len(stripes)} stripes")
        self.image_id = image_id
        self.layout = layout
        self._new = new
        self._writable = writable
        self._lanes = [self._lane(index, stripe) for index, stripe in enumerate(stripes)]

    # --- bytes ----------------------------------------------------------------------------------------------------

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write ``data`` at ``offset``. On an error a part before it may have been written."""
        view = memoryview(data)
        for span in self.layout.spans(offset, len(data)):
            start = span.offset - offset
            self._lanes[span.lane].write(span.lane_offset, [view[start : start + span.length]])

    def write_span(self, lane: int, lane_offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write buffers that are contiguous in one lane (see :meth:`Layout.spans`) in as few calls as can be."""
        self._lanes[lane].write(lane_offset, buffers)

    def read(self, offset: int, length: int) -> bytearray:
        """``length`` bytes from ``offset`` on, zeros wherever nothing was written. The caller knows the file's end."""
        target = bytearray(length)
        for span in self.layout.spans(offset, length):
            if span.length == length:
                self._lanes[span.lane].read_into(span.lane_offset, target)
            else:
                start = span.offset - offset
                self._lanes[span.lane].read_into(span.lane_offset, memoryview(target)[start : start + span.length])
        return target

    def read_into_nowait(self, offset: int, target: memoryview) -> bool:
        """Fill ``target`` from ``offset`` on without blocking; ``False`` where a byte is not cached, or in no open lane."""
        for span in self.layout.spans(offset, len(target)):
            start = span.offset - offset
            part = target[start : start + span.length]
            if not self._lanes[span.lane].read_into_nowait(span.lane_offset, part):
                return False
        return True

    def read_ahead(self, offset: int, length: int) -> None:
        """Have a range brought into the page cache, so that :meth:`read_into_nowait` will find it."""
        for span in self.layout.spans(offset, length):
            self._lanes[span.lane].read_ahead(span.lane_offset, span.length)

    def truncate(self, size: int) -> None:
        """Forget every byte from ``size`` on, and the space reserved there."""
        for index, lane in enumerate(self._lanes):
            lane.cut(self.layout.lane_size(index, size))

    def punch(self, offset: int, length: int) -> None:
        """Make a range read as zeros, and free its space where the filesystem can; one call a lane at any length."""
        for index, lane in enumerate(self._lanes):
            start = self.layout.lane_size(index, offset)
            end = self.layout.lane_size(index, offset + length)
            if start < end:
                lane.punch(start, end)

    # --- space ----------------------------------------------------------------------------------------------------

    @property
    def stripes(self) -> list[Path]:
        """The stripe directory of each lane."""
        return [lane.stripe for lane in self._lanes]

    @property
    def reserves(self) -> bool:
        """``False`` where a filesystem cannot allocate ahead: then write before saying that a write succeeded."""
        return all(lane.can_reserve for lane in self._lanes)

    def needs_reserve(self, offset: int, length: int) -> bool:
        """Whether :meth:`reserve` has anything to do; asks no device."""
        return any(
            self._lanes[span.lane].needs_reserve(span.lane_offset, span.lane_offset + span.length)
            for span in self.layout.spans(offset, length)
        )

    def reserve(self, offset: int, length: int, *, ahead: bool = True) -> None:
        """Make sure that a write of this range will find space; ``ahead`` gives sequential writers some for later.

        Raises ``OSError`` (ENOSPC, EDQUOT) when it is not to be had. No lane grows by it. Where :attr:`reserves` is
        false it only compares with what is free.
        """
        for span in self.layout.spans(offset, length):
            self._lanes[span.lane].reserve(span.lane_offset, span.lane_offset + span.length, ahead=ahead)

    def trim(self) -> None:
        """Give back everything reserved and not written. Only while no accepted byte waits to be written."""
        for lane in self._lanes:
            lane.trim()

    # --- durability -----------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Flush what was written, and the names of new lanes, to the devices, all stripes at once.

        A lane whose flush failed fails every later one of this object too: its bytes are lost.
        """
        waiting = [lane for lane in self._lanes if lane.needs_sync]
        if len(waiting) == 1:
            waiting[0].sync()
        elif waiting:
            with ThreadPoolExecutor(len(waiting), thread_name_prefix="ckptfs-sync") as threads:
                flushes = [threads.submit(lane.sync) for lane in waiting]
            for flush in flushes:
                flush.result()

    def unsynced(self) -> list[tuple[Lane, int]]:
        """What a flush of whole filesystems that begins now would cover; give it to :meth:`synced`. Does not block."""
        return [(lane, lane.changes) for lane in self._lanes if lane.needs_sync]

    def synced(self, covered: Sequence[tuple[Lane, int]]) -> None:
        """The filesystems of all lanes were flushed since :meth:`unsynced` gave ``covered``.

        Raises ``OSError`` as :meth:`sync` does, for the lanes of this image.
        """
        for lane, changes in covered:
            lane.synced(changes)

    # --- shape ----------------------------------------------------------------------------------------------------

    def widen(self, layout: Layout, stripes: Sequence[Path]) -> None:
        """Lay the image over more stripes. Raises ``ValueError`` unless every byte so far stays where it is.

        That is so while nothing beyond chunk 0 was written and the lane of chunk 0 stays on its stripe as lane 0.
        """
        if len(stripes) != layout.width or layout.chunk_size != self.layout.chunk_size:
            raise ValueError(f"{layout} does not fit an image of {self.layout} and {len(stripes)} stripes")
        if len(self._lanes) != 1 or layout.first != 0 or stripes[0] != self._lanes[0].stripe:
            raise ValueError("only an image with one lane can be widened, and that lane stays lane 0")
        if self._lanes[0].size() > layout.chunk_size:
            raise ValueError("an image is widened before its second chunk is written, not after")
        self._lanes += [self._lane(index, stripe) for index, stripe in enumerate(stripes) if index > 0]
        self.layout = layout  # last: a read that runs meanwhile finds the lanes of the layout it sees

    def lane_sizes(self) -> list[int]:
        """The size of each lane in bytes, 0 for one that does not exist."""
        return [lane.size() for lane in self._lanes]

    def allocated_bytes(self) -> int:
        """What the image takes of its devices, reserved space included."""
        return sum(lane.allocated_bytes() for lane in self._lanes)

    def close(self) -> None:
        """Close the lane files; a later call opens them again. Only while no other call runs."""
        for lane in self._lanes:
            lane.close()

    def __del__(self) -> None:
        # A replaced generation's image has no owner that knows when its last user, mostly a flush, is done.
        for lane in getattr(self, "_lanes", ()):
            lane.close()

    def _lane(self, index: int, stripe: Path) -> Lane:
        return Lane(stripe, self.image_id, index, new=self._new, writable=self._writable)
