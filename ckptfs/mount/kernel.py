"""What is asked of the kernel beside FUSE requests: unmounting, and the limits it sets on a mount.

libfuse offers no way to set read-ahead or the number of requests in the background, so both are written to their
files in ``/sys`` once the mount is up. Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import shutil
import subprocess
from pathlib import Path

from ckptfs.mount import table

log = logging.getLogger(__name__)

READ_AHEAD_KIB = 4096
"""Four requests of the largest size ahead, twice. Measured with 1 ms for each read in the daemon, one reader: 0.19 GB/s
with the kernel's 128 KiB, 0.88 with 1 MiB, 1.70 with 4 MiB, 1.45 with 8 MiB, 1.31 with 16 MiB.
"""

MAX_BACKGROUND = 64
"""Eight requests for each of eight readers. With the kernel's 12, read-ahead of four readers gives up when the limit is
reached, and their next page is a request of 4 KiB.
"""

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


def raise_limits(device_major: int, device_minor: int) -> None:
    """Raise read-ahead and background requests of a mount. Never fails: without the right to, reads are slower."""
    connection = Path(f"/sys/fs/fuse/connections/{device_minor}")
    for file, value in (
        (Path(f"/sys/class/bdi/{device_major}:{device_minor}/read_ahead_kb"), READ_AHEAD_KIB),
        (connection / "max_background", MAX_BACKGROUND),
        (connection / "congestion_threshold", MAX_BACKGROUND * 3 // 4),
    ):
        try:
            file.write_text(str(value))
        except OSError as why:
            log.info("%s stays as it is (%s): reads may be slower", file, why.strerror)


def unmount(mountpoint: Path, *, lazily: bool) -> None:
    """Take ``mountpoint`` out of the directory tree; lazily, what is open goes on working and the mount ends with it.

    Raises ``OSError``: EBUSY when something is open and ``lazily`` is false, EINVAL when nothing is mounted there, EPERM
    when fusermount3 did not do it for another reason, which is in the error.
    """
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.umount2(os.fsencode(mountpoint), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazily else 0)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(mountpoint))
        return
    helper = shutil.which("fusermount3") or shutil.which("fusermount")
    if helper is None:
        raise OSError(errno.EPERM, "only root can unmount without fusermount3", os.fspath(mountpoint))
    done = subprocess.run(
        [helper, "-u", *(["-z"] if lazily else []), os.fspath(mountpoint)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    if done.returncode != 0:
        gone = table.mount_at(mountpoint) is None
        number = errno.EBUSY if "busy" in done.stderr else errno.EINVAL if gone else errno.EPERM
        raise OSError(number, done.stderr.strip(), os.fspath(mountpoint))
