"""Instances: within which life of this machine and of these mounts an unflushed byte can still be trusted.

The same boot is not enough. A filesystem can be lost and mounted again while the machine stays up (a device that
dropped out, a forced shutdown of the filesystem), and the page cache goes with it. So an instance is the boot id and,
for each path, the id of the mount it lies on that the kernel never gives out twice (``statx``,
``STATX_MNT_ID_UNIQUE``, Linux 6.8). Python has no ``statx`` before 3.15: glibc's is called.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_AT_FDCWD = -100
_STATX_MNT_ID_UNIQUE = 0x4000
_STATX_BYTES = 256
_STX_MASK_AT = 0
_STX_MNT_ID_AT = 144  # linux/stat.h: the same on every 64-bit architecture


def current_instance(paths: Sequence[Path]) -> str | None:
    """Name the instance that ``paths`` are in now: equal names mean that what was written without a flush is still
    there.

    None where the kernel cannot tell; then it is never believed to be the same instance. Raises ``OSError`` when a
    path is not there.
    """
    try:
        boot = boot_id()
    except OSError:
        return None
    mounts: list[str] = []
    for path in paths:
        mount = unique_mount_id(path)
        if mount is None:
            return None
        mounts.append(f"{mount:x}")
    return " ".join([boot, *mounts])


def boot_id() -> str:
    """The kernel's id of this boot. Raises ``OSError`` where there is none."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def unique_mount_id(path: Path) -> int | None:
    """The never-reused id of the mount that ``path`` lies on, or None where the kernel or the C library has none."""
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except AttributeError:
        return None
    record = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), 0, ctypes.c_uint(_STATX_MNT_ID_UNIQUE), record) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    if not ctypes.c_uint32.from_buffer(record, _STX_MASK_AT).value & _STATX_MNT_ID_UNIQUE:
        return None
    return ctypes.c_uint64.from_buffer(record, _STX_MNT_ID_AT).value
