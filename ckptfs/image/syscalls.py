"""System calls that Python has no binding for.

``os.posix_fallocate`` is not ``fallocate(2)``: it changes the size, and writes zeros where blocks cannot be allocated.
ctypes releases the interpreter lock during a call.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import NoReturn

_KEEP_SIZE = 0x01
_PUNCH_HOLE = 0x02
_SYNC_FILE_RANGE_WAIT_BEFORE = 1

_libc = ctypes.CDLL(None, use_errno=True)
# The names with 64: without, offsets have 32 bits on 32-bit machines.
_fallocate64 = _libc.fallocate64
_fallocate64.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_fallocate64.restype = ctypes.c_int
_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_sync_file_range.restype = ctypes.c_int
_syncfs = _libc.syncfs
_syncfs.argtypes = [ctypes.c_int]
_syncfs.restype = ctypes.c_int


def reserve_space(descriptor: int, offset: int, length: int) -> None:
    """Back a range of bytes with blocks; size and content stay. Raises ``OSError``; see :func:`is_unsupported`."""
    _fallocate(descriptor, _KEEP_SIZE, offset, length)


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Make a range read as zeros and free its blocks; the size stays. Raises as :func:`reserve_space` does."""
    _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, length)


def is_unsupported(why: OSError) -> bool:
    """Whether the filesystem does not offer the call at all (NFS 3, some FUSE filesystems): asking again is useless."""
    return why.errno in (errno.EOPNOTSUPP, errno.ENOSYS)


def syncfs(path: Path) -> None:
    """Flush the whole filesystem that holds ``path``, as one journal commit. Raises ``OSError``.

    A failure is told to one caller only, whoever wrote the bytes: see :func:`raise_lost_writes`.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if _syncfs(descriptor) != 0:
            _raise_errno()
    finally:
        os.close(descriptor)


def raise_lost_writes(descriptor: int) -> None:
    """Raise the ``OSError`` of an earlier write-back of this file, if one failed and the descriptor was not told.

    Waits for write-back that runs, starts none, flushes no device: what ``fdatasync`` would report, without its cost.
    """
    if _sync_file_range(descriptor, 0, 0, _SYNC_FILE_RANGE_WAIT_BEFORE) != 0:
        _raise_errno()


def _fallocate(descriptor: int, mode: int, offset: int, length: int) -> None:
    while _fallocate64(descriptor, mode, offset, length) != 0:
        if ctypes.get_errno() != errno.EINTR:
            _raise_errno()


def _raise_errno() -> NoReturn:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))
