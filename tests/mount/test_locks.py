"""Locks: flock, POSIX and open-file-description locks, all kept by the kernel."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.support.system import errno_of, in_child

if TYPE_CHECKING:
    from pathlib import Path

_F_OFD_SETLK = 37
_BUSY = {errno.EAGAIN, errno.EACCES}


def test_flock_excludes_other_openings(place: Path) -> None:
    """S-locks."""
    with open(place / "l", "w") as one, open(place / "l", "w") as other:
        os.fchmod(one.fileno(), 0o644)
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert errno_of(fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB) in _BUSY
        fcntl.flock(one, fcntl.LOCK_SH)
        fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert errno_of(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB) in _BUSY
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_read_only_opening_may_lock_too(place: Path) -> None:
    (place / "l").touch()
    with open(place / "l", "rb") as one, open(place / "l", "rb") as other:
        fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert errno_of(fcntl.flock, other, fcntl.LOCK_EX | fcntl.LOCK_NB) in _BUSY


def test_posix_locks_exclude_other_processes_from_a_range(place: Path) -> None:
    """S-locks."""
    (place / "l").write_bytes(b"x" * 100)
    with open(place / "l", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)

        def lock(start: int, length: int) -> int:
            def attempt() -> None:
                descriptor = os.open(place / "l", os.O_RDWR)
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)

            return in_child(attempt)

        assert lock(25, 10) in _BUSY
        assert lock(0, 20) == 0
        assert lock(30, 0) == 0
        os.close(os.open(place / "l", os.O_RDONLY))  # POSIX: closing any descriptor of the file drops them
        assert lock(25, 10) == 0


def test_open_file_description_locks_belong_to_the_opening(place: Path) -> None:
    lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with open(place / "l", "w") as one, open(place / "l", "w") as other:
        fcntl.fcntl(one, _F_OFD_SETLK, lock)
        os.close(os.open(place / "l", os.O_RDONLY))
        assert errno_of(fcntl.fcntl, other, _F_OFD_SETLK, lock) in _BUSY
        duplicate = os.dup(one.fileno())
        one.close()
        assert errno_of(fcntl.fcntl, other, _F_OFD_SETLK, lock) in _BUSY
        os.close(duplicate)
        fcntl.fcntl(other, _F_OFD_SETLK, lock)


def test_a_lock_survives_the_rename_and_the_removal_of_its_file(place: Path) -> None:
    """S-locks."""
    with open(place / "x.__lock", "wb") as file, open(place / "x.__lock", "rb") as other:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(b"content")
        file.flush()
        os.fsync(file.fileno())
        (place / "x.__lock").rename(place / "x")
        assert errno_of(fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB) in _BUSY
        (place / "x").unlink()
        assert errno_of(fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB) in _BUSY
    assert os.listdir(place) == []


def test_a_waiting_process_gets_the_lock_when_its_holder_dies(place: Path) -> None:
    program = "import fcntl, sys\nf = open(sys.argv[1], 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\nprint('locked', flush=True)\ninput()"
    command = [sys.executable, "-c", program, str(place / "l")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
            holder.kill()
            holder.wait(30)
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "locked\n"
            waiting.kill()
