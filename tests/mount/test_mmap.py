"""Memory-mapped files."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.system import errno_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.mounted import MountedVolume

SIZE = 4 << 20


def read_elsewhere(path: Path) -> bytes:
    """What another process reads."""
    return subprocess.run(["cat", path], capture_output=True, timeout=30, check=True).stdout


@pytest.mark.parametrize("flags", [mmap.MAP_SHARED, mmap.MAP_PRIVATE], ids=["shared", "private"])
def test_a_mapping_outlives_its_descriptor(place: Path, flags: int) -> None:
    """S-mmap."""
    content = os.urandom(SIZE)
    (place / "f").write_bytes(content)
    with open(place / "f", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
    assert mapped[:] == content
    mapped.close()


def test_a_private_mapping_changes_nothing(place: Path) -> None:
    (place / "f").write_bytes(b"x" * 10_000)
    with open(place / "f", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[:4] = b"mine"
        assert mapped[:5] == b"minex"
    assert (place / "f").read_bytes() == b"x" * 10_000


def test_what_is_written_to_a_mapping_is_read_by_others(place: Path) -> None:
    with open(place / "f", "w+b") as file:
        file.truncate(SIZE)
        with mmap.mmap(file.fileno(), SIZE) as mapped:
            mapped[:] = b"\2" * SIZE
            mapped.flush()
            assert set(read_elsewhere(place / "f")) == {2}
            mapped[SIZE - 1] = 3
            assert os.pread(file.fileno(), 2, SIZE - 2) == b"\2\3"
    assert read_elsewhere(place / "f")[-2:] == b"\2\3"


def test_pages_written_after_the_last_close_are_kept(place: Path) -> None:
    """S-mmap, S-close: np.memmap: one byte at the end, map, close every descriptor, write, unmap."""
    descriptor = os.open(place / "f", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, b"\0", SIZE - 1)
    mapped = mmap.mmap(descriptor, SIZE)
    os.close(descriptor)
    mapped[:] = b"\5" * SIZE
    os.truncate(place / "f", 2 * SIZE)
    mapped[7] = 9
    mapped.close()
    content = read_elsewhere(place / "f")
    assert len(content) == 2 * SIZE
    assert (content[7], set(content[8:SIZE]), set(content[SIZE:])) == (9, {5}, {0})


def test_a_mapping_survives_a_remount_of_its_content(mounted: MountedVolume) -> None:
    with open(mounted.mountpoint / "f", "w+b") as file:
        file.truncate(SIZE)
        mapped = mmap.mmap(file.fileno(), SIZE)
    mapped[SIZE // 2 : SIZE // 2 + 5] = b"dirty"
    mapped.close()  # never flushed by hand
    mounted.remount()
    with open(mounted.mountpoint / "f", "rb") as file:
        file.seek(SIZE // 2)
        assert file.read(5) == b"dirty"


@pytest.mark.parametrize("by", ["unlink", "rename"])
def test_a_mapping_keeps_the_bytes_of_a_file_that_lost_its_name(place: Path, by: str) -> None:
    old = os.urandom(SIZE)
    (place / "w").write_bytes(old)
    with open(place / "w", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    (place / "new").write_bytes(b"new" * 1000)
    if by == "unlink":
        (place / "w").unlink()
    (place / "new").rename(place / "w")
    mapped.madvise(mmap.MADV_DONTNEED)
    assert mapped[:] == old
    mapped.close()
    assert (place / "w").read_bytes() == b"new" * 1000


def test_a_reader_of_a_mapping_sees_what_a_descriptor_writes(place: Path) -> None:
    """S-visible."""
    (place / "f").write_bytes(b"a" * 20_000)
    with open(place / "f", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    assert mapped[9_999:10_001] == b"aa"
    writer = os.open(place / "f", os.O_WRONLY)
    os.pwrite(writer, b"b", 10_000)
    os.close(writer)
    assert mapped[9_999:10_001] == b"ab"
    mapped.close()


def test_touching_a_page_that_was_truncated_away_is_a_bus_error(place: Path) -> None:
    (place / "f").write_bytes(b"x" * 100_000)
    program = (
        "import mmap, os, sys\nf = open(sys.argv[1], 'r+b')\nm = mmap.mmap(f.fileno(), 100000)\nos.truncate(sys.argv[1], 10)\n"
        "assert m[:10] == b'x' * 10 and m[10] == 0\nprint(m[50000])"
    )
    done = subprocess.run([sys.executable, "-c", program, place / "f"], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGBUS
    assert (place / "f").read_bytes() == b"x" * 10


def test_overwriting_in_place_what_is_mapped_harms_nobody_else(place: Path) -> None:
    (place / "f").write_bytes(b"old" * 100_000)
    with open(place / "f", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    assert mapped[:3] == b"old"
    new = os.urandom(300_000)
    (place / "f").write_bytes(new)
    assert mapped[:] == new
    mapped.close()


def test_a_write_only_descriptor_cannot_be_mapped(place: Path) -> None:
    """S-mmap-write-only."""
    descriptor = os.open(place / "f", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"x" * 5000)
    assert errno_of(mmap.mmap, descriptor, 5000) == errno.EACCES
    os.close(descriptor)
