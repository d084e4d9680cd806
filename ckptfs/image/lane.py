"""One lane: the file that holds one image's chunks on one stripe.

A lane file is created by the first write or reservation; until then the lane reads as zeros. Its size is the end of the
last byte written, never of what is reserved.

**Reserving.** Space is allocated before bytes are accepted, so a full device fails the write that does not fit. One run
of reserved bytes is remembered, and a sequential writer gets as much again ahead of it as it has: at most 32 MiB,
and at most an eighth of what is free, so that one writer does not take the last blocks from the others. Measured on
ext4, Linux 6.18, 1 MiB writes: 9.3 GiB/s into reserved blocks, 5.2 into none; with the ``fdatasync`` after 512 MiB, 2.9
and 2.3.

**Reading.** What goes into FUSE's page cache need not stay in this one. Measured cold, same machine, 1 MiB reads:
``RWF_DONTCACHE`` reads 1.9 GiB/s where plain reads do 2.5-3.2 (of 128 KiB: 1.1 against 2.4-3.2).
``POSIX_FADV_DONTNEED`` on what was just read drops nearly nothing, for read-ahead brings folios larger than a request,
and those are skipped. Dropping whole windows, one window behind the reader, costs nothing (3.3 GiB/s) and leaves 1 %.

**Flushing.** ``changes`` counts what altered the lane; a flush covers the count from before it began. A lane that an
earlier process may have written begins as not flushed.

**Locking.** A lane's lock orders what changes its size or its reservation: writes, cuts, trims, punches. Reads take no
lock. The image, not the lane, knows which bytes of the file these are.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path

from ckptfs import faults
from ckptfs.image import syscalls
from ckptfs.image.files import lane_path

MAX_AHEAD_BYTES = 32 * 2**20
"""Reserved beyond what was asked for: one allocation for 32 writes of FUSE's largest size, and little to give back."""

DROP_WINDOW_BYTES = 4 * 2**20
"""What is dropped from the page cache at once: above the largest folio (2 MiB), so that few straddle a border."""

_ZEROS = bytes(2**20)
_MAX_BUFFERS = 1024  # IOV_MAX

_devices_without_fallocate: set[int] = set()


class _File(Enum):
    UNOPENED = auto()
    ABSENT = auto()
    OPEN = auto()


class Lane:
    """One lane file. Offsets and lengths in bytes; every method may block and raise the device's ``OSError``."""

    def __init__(self, stripe: Path, image_id: int, lane: int, *, new: bool, writable: bool) -> None:
        self.stripe = stripe
        self._stripe_name = str(stripe)
        self._path = lane_path(stripe, image_id, lane)
        self._flags = os.O_RDWR if writable else os.O_RDONLY
        self._new = new
        self._file = _File.ABSENT if new else _File.UNOPENED
        self._descriptor = -1
        self._device = -1
        self._size = 0
        self._lock = threading.Lock()
        self._reserved = (0, 0)  # one run of bytes known to have blocks
        self._may_have_spare = not new
        self._may_have_reserved_holes = False
        self.changes = 0
        self._flushed_changes = -1
        self._name_is_durable = False
        self._lost_writes: OSError | None = None

    # --- bytes ----------------------------------------------------------------------------------------------------

    def write(self, offset: int, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write the buffers one after the other at ``offset``. On an error a part before it may have been written."""
        total = sum(map(len, buffers))
        faults.pass_bytes("lane.write", self._stripe_name, total)
        with self._lock:
            descriptor = self._open_for_writing()
            written = 0
            try:
                while written < total:
                    rest = buffers if written == 0 else list(_after(buffers, written))
                    written += os.pwritev(descriptor, rest[:_MAX_BUFFERS], offset + written)
            finally:
                # After the write: a flush that began before it ended must not count it as flushed.
                self.changes += 1
                self._size = max(self._size, offset + written)

    def read_into(self, offset: int, target: bytearray | memoryview) -> None:
        """Fill ``target``, which holds zeros, from ``offset`` on; what lies beyond the lane's end is left as it is."""
        if self._file is not _File.OPEN and not self._open_existing():
            return
        total = len(target)
        faults.pass_bytes("lane.read", self._stripe_name, total)
        got = step = os.preadv(self._descriptor, [target], offset)
        while step and got < total:
            step = os.preadv(self._descriptor, [memoryview(target)[got:]], offset + got)
            got += step
        self._drop_behind(offset, offset + total)

    def read_ahead(self, offset: int, length: int) -> None:
        """Bring bytes into the page cache; returns when that was asked of the device, mostly before they are there."""
        if self._file is not _File.OPEN and not self._open_existing():
            return
        faults.pass_bytes("lane.read", self._stripe_name, max(0, min(length, self._size - offset)))
        os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def read_into_nowait(self, offset: int, target: bytearray | memoryview) -> bool:
        """As :meth:`read_into` where all bytes are in the page cache and the lane is open; ``False`` otherwise."""
        if self._file is not _File.OPEN:
            return False
        try:
            return os.preadv(self._descriptor, [target], offset, os.RWF_NOWAIT) == len(target)
        except (BlockingIOError, OSError) as why:
            if isinstance(why, BlockingIOError) or syscalls.is_unsupported(why):
                return False
            raise

    def punch(self, start: int, end: int) -> None:
        """Make ``[start, end)`` read as zeros; frees the space where the filesystem can."""
        with self._lock:
            if not self._open_existing_locked():
                return
            try:
                syscalls.punch_hole(self._descriptor, start, end - start)
            except OSError as why:
                if not syscalls.is_unsupported(why):
                    raise
                self._write_zeros(start, min(end, self._size))
            reserved_from, reserved_to = self._reserved
            if start < reserved_to and reserved_from < end:
                self._reserved = (0, 0)
            self.changes += 1

    # --- space ----------------------------------------------------------------------------------------------------

    @property
    def can_reserve(self) -> bool:
        """``False`` once the filesystem has shown that it cannot allocate ahead."""
        return self._device not in _devices_without_fallocate

    def needs_reserve(self, start: int, end: int) -> bool:
        reserved_from, reserved_to = self._reserved
        return not (reserved_from <= start and end <= reserved_to)

    def reserve(self, start: int, end: int, *, ahead: bool) -> None:
        """Make sure that ``[start, end)`` has blocks. Raises ``OSError`` (ENOSPC, EDQUOT) where it cannot be had."""
        if not self.needs_reserve(start, end):
            return
        faults.hit("lane.reserve")
        with self._lock:
            if not self.needs_reserve(start, end):
                return  # another thread came first: what is left to reserve would be less than nothing, and EINVAL
            descriptor = self._open_for_writing()
            if self.can_reserve:
                self._reserve_locked(descriptor, start, end, ahead)
            if not self.can_reserve:
                _check_free(descriptor, end - start)

    def cut(self, size: int) -> None:
        """Forget every byte from ``size`` on, and what is reserved there. Never makes a lane longer."""
        with self._lock:
            if not self._open_existing_locked():
                return
            if size < self._size:
                os.ftruncate(self._descriptor, size)
                self._size = size
                self.changes += 1
            elif self._reserved[1] > size:
                os.ftruncate(self._descriptor, self._size)
            else:
                return
            self._reserved = _up_to(self._reserved, self._size)

    def trim(self) -> None:
        """Give back what is reserved and not written."""
        with self._lock:
            if self._file is _File.UNOPENED and not self._may_have_spare:
                return
            if not self._open_existing_locked():
                return
            if self._may_have_spare:
                # Cutting to the size it has frees the blocks beyond; punching there does nothing on ext4.
                os.ftruncate(self._descriptor, self._size)
                self._may_have_spare = False
            if self._may_have_reserved_holes:
                self._free_reserved_holes()
                self._may_have_reserved_holes = False
            self._reserved = _up_to(self._reserved, self._size)

    # --- durability -----------------------------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        known = self._flushed_changes == self.changes and self._name_is_durable
        return self._file is not _File.ABSENT and not known

    def sync(self) -> None:
        """Flush the bytes, then the name.

        A device that once failed to flush has dropped the bytes, and the kernel says so only once: the error is raised
        again at every later call.
        """
        if not self.needs_sync or (self._file is not _File.OPEN and not self._open_existing()):
            return
        faults.hit("lane.fsync")
        changes = self.changes
        if self._flushed_changes != changes:
            self._flush(os.fdatasync)
            self._flushed_changes = max(self._flushed_changes, changes)
        if not self._name_is_durable:
            _sync_directory(self._path.parent)
            self._name_is_durable = True

    def synced(self, changes: int) -> None:
        """The filesystem was flushed after ``changes`` changes. Raises as :meth:`sync` does."""
        if self._file is not _File.OPEN and not self._open_existing():
            return
        self._flush(syscalls.raise_lost_writes)
        self._flushed_changes = max(self._flushed_changes, changes)
        self._name_is_durable = True

    def _flush(self, call: Callable[[int], None]) -> None:
        if self._lost_writes is not None:
            raise OSError(
                self._lost_writes.errno, f"{self._path}: an earlier flush failed: {self._lost_writes.strerror}"
            )
        try:
            call(self._descriptor)
        except OSError as why:
            self._lost_writes = why
            raise

    # --- the file -------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """The lane's size; 0 where there is none."""
        status = self._stat()
        return 0 if status is None else status.st_size

    def allocated_bytes(self) -> int:
        """What the lane takes of its device, reserved space included."""
        status = self._stat()
        return 0 if status is None else status.st_blocks * 512

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._file is _File.OPEN:
                self._file = _File.UNOPENED
                os.close(self._descriptor)
                self._descriptor = -1

    def _open_for_writing(self) -> int:
        if self._file is not _File.OPEN and not self._open_existing_locked():
            # What lies in the way of a new image is a leftover of one whose metadata was lost. In the way of any other
            # it is somebody's data.
            descriptor = os.open(self._path, self._flags | os.O_CREAT | (os.O_TRUNC if self._new else 0), 0o600)
            self._opened(descriptor)
        return self._descriptor

    def _open_existing(self) -> bool:
        if self._file is _File.ABSENT:
            return False
        with self._lock:
            return self._open_existing_locked()

    def _open_existing_locked(self) -> bool:
        if self._file is _File.UNOPENED:
            try:
                descriptor = os.open(self._path, self._flags)
            except FileNotFoundError:
                self._file = _File.ABSENT
                return False
            self._opened(descriptor)
        return self._file is _File.OPEN

    def _opened(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self._device = status.st_dev
        self._size = status.st_size
        self._descriptor = descriptor
        # The kernel reads twice as far ahead. The requests of a mapping's faults come out of order, and are to find their
        # bytes all the same. (docs/benchmarks.md has figures, which are noisy.)
        # Where a test limits the rate the kernel must not read ahead by itself, since nobody would count that.
        order = os.POSIX_FADV_RANDOM if faults.is_limited("lane.read") else os.POSIX_FADV_SEQUENTIAL
        os.posix_fadvise(descriptor, 0, 0, order)
        self._file = _File.OPEN  # last: readers look at it without the lock

    def _stat(self) -> os.stat_result | None:
        if self._file is _File.ABSENT:
            return None
        with self._lock:
            if self._file is _File.OPEN:
                return os.fstat(self._descriptor)
        with suppress(FileNotFoundError):
            return self._path.stat()
        return None

    # --- helpers --------------------------------------------------------------------------------------------------

    def _reserve_locked(self, descriptor: int, start: int, end: int, ahead: bool) -> None:
        reserved_from, reserved_to = self._reserved
        if reserved_from <= start <= reserved_to:
            run_from, missing_from = reserved_from, reserved_to
        else:
            run_from = missing_from = start
            self._may_have_reserved_holes |= reserved_to > self._size
        self._may_have_spare = True  # also when it fails: the filesystem may have allocated a part
        more = self._ahead(descriptor, end - run_from) if ahead and end >= self._size else 0
        with suppress(OSError):  # the exact attempt below decides
            if more:
                syscalls.reserve_space(descriptor, missing_from, end + more - missing_from)
                self._reserved = (run_from, end + more)
                return
        try:
            syscalls.reserve_space(descriptor, missing_from, end - missing_from)
        except OSError as why:
            if not syscalls.is_unsupported(why):
                raise
            _devices_without_fallocate.add(self._device)
            return
        self._reserved = (run_from, end)

    def _ahead(self, descriptor: int, run_length: int) -> int:
        space = os.fstatvfs(descriptor)
        return min(run_length, MAX_AHEAD_BYTES, space.f_bavail * space.f_frsize // 8)

    def _drop_behind(self, start: int, end: int) -> None:
        # Not while it is being written: dropping would start writing dirty pages back, at every read.
        if self.changes and self._flushed_changes != self.changes:
            return
        at_end = end >= self._size
        window = end // DROP_WINDOW_BYTES
        if at_end or window != start // DROP_WINDOW_BYTES:
            drop_from = max(0, window - 2) * DROP_WINDOW_BYTES
            length = 0 if at_end else (window - 1) * DROP_WINDOW_BYTES - drop_from  # 0: to the end of the file
            if at_end or length > 0:
                os.posix_fadvise(self._descriptor, drop_from, length, os.POSIX_FADV_DONTNEED)

    def _free_reserved_holes(self) -> None:
        # Blocks reserved ahead of a writer that went elsewhere: allocated but never written, which SEEK_HOLE reports as
        # holes. Punching a true hole costs a look-up.
        self._flush(os.fdatasync)  # so that no written byte is still waiting for its block
        position = 0
        while position < self._size:
            hole = os.lseek(self._descriptor, position, os.SEEK_HOLE)
            if hole >= self._size:
                return
            try:
                position = os.lseek(self._descriptor, hole, os.SEEK_DATA)
            except OSError as why:
                if why.errno != errno.ENXIO:  # no data after the hole
                    raise
                position = self._size
            if position > hole:  # a reader may have filled the page cache between the two look-ups
                syscalls.punch_hole(self._descriptor, hole, position - hole)

    def _write_zeros(self, start: int, end: int) -> None:
        while start < end:
            start += os.pwrite(self._descriptor, _ZEROS[: end - start], start)


def _after(buffers: Sequence[bytes | bytearray | memoryview], written: int) -> Iterator[bytes | bytearray | memoryview]:
    for buffer in buffers:
        if written >= len(buffer):
            written -= len(buffer)
        else:
            yield memoryview(buffer)[written:]
            written = 0


def _up_to(run: tuple[int, int], end: int) -> tuple[int, int]:
    return (run[0], min(run[1], end)) if run[0] < end else (0, 0)


def _check_free(descriptor: int, length: int) -> None:
    space = os.fstatvfs(descriptor)
    if space.f_bavail * space.f_frsize < length:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
