"""The lock that keeps two processes from serving one volume, and the note in it that says who holds it.

An open-file-description lock on ``lock`` in the volume directory: the kernel drops it with the process however that
ends, and, unlike ``flock``, it can be asked about without being taken, so that ``ckptfs status`` can never make a
mount fail. The file's text, process id and mountpoint, is for messages only: it is believed only while the lock is
held. The file is never removed; removing a lock file races with whoever just opened it.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ckptfs.errors import VolumeInUse

LOCK_NAME = "lock"

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a volume. ``mountpoint`` is empty for a command that works on the volume without mounting it."""

    pid: int
    mountpoint: str

    def __str__(self) -> str:
        where = f", which serves it at {self.mountpoint}" if self.mountpoint else ""
        return f"process {self.pid}{where}"


class VolumeLock:
    """The lock on one volume, held until :meth:`release` or the end of a ``with``. Not reentrant."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def acquire(cls, directory: Path) -> VolumeLock:
        """Take the lock of the volume in ``directory``. Raises :class:`VolumeInUse`, naming process and mountpoint."""
        fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):
            holder = _read_note(fd)
            os.close(fd)
            who = "another process" if holder is None else str(holder)
            advice = (
                f": ckptfs umount {holder.mountpoint}"
                if holder is not None and holder.mountpoint
                else ", or wait for it"
            )
            raise VolumeInUse(f"{directory} is in use by {who}. Unmount it first{advice}") from None
        except BaseException:
            os.close(fd)
            raise
        lock = cls(fd)
        note_mountpoint(directory, "")
        return lock

    def release(self) -> None:
        """Give the lock up; doing so twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> VolumeLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@contextmanager
def stripe_locks(files: Sequence[Path]) -> Generator[None, None, None]:
    """Hold a lock on each of these files, one on each stripe, against another copy of the volume directory.

    Raises :class:`VolumeInUse` naming the stripe.
    """
    descriptors: list[int] = []
    try:
        for file in files:
            descriptors.append(os.open(file, os.O_RDWR | os.O_CLOEXEC))
            try:
                fcntl.fcntl(descriptors[-1], fcntl.F_OFD_SETLK, _whole_file(fcntl.F_WRLCK))
            except (BlockingIOError, PermissionError):
                raise VolumeInUse(
                    f"the stripe {file.parent} is in use by another process, so this volume directory is a copy of one that is "
                    "mounted. Unmount that one; never mount two copies over the same stripes"
                ) from None
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def note_mountpoint(directory: Path, mountpoint: str) -> None:
    """Write into the lock that this process, which must hold it, serves the volume at ``mountpoint``."""
    fd = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    try:
        text = f"{os.getpid()}\n{mountpoint}\n".encode(errors="surrogateescape")
        os.ftruncate(fd, os.pwrite(fd, text, 0))
    finally:
        os.close(fd)


def read_holder(directory: Path) -> Holder | None:
    """Who holds the volume in ``directory`` now; None when nobody does. Takes nothing, and waits for nothing."""
    try:
        fd = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
        if _FLOCK.unpack(answer)[0] == fcntl.F_UNLCK:
            return None
        return _read_note(fd) or Holder(pid=0, mountpoint="")
    finally:
        os.close(fd)


def _whole_file(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


def _read_note(fd: int) -> Holder | None:
    pid, _, mountpoint = os.pread(fd, 65536, 0).decode(errors="surrogateescape").partition("\n")
    return Holder(int(pid), mountpoint.removesuffix("\n")) if pid.isdecimal() else None
