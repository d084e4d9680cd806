"""Sizes, holes and space."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.mounted import wait_until
from tests.support.system import errno_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.mounted import MountedVolume

CHUNK = 8 << 20
_FICLONE = 0x40049409


def bytes_on_stripes(volume: MountedVolume) -> int:
    return sum(lane.stat().st_blocks * 512 for stripe in volume.stripes for lane in (stripe / "images").iterdir())


def test_a_file_larger_than_four_gib_is_mostly_hole(place: Path) -> None:
    offset = (1 << 32) + 12_345
    descriptor = os.open(place / "f", os.O_RDWR | os.O_CREAT)
    assert os.pwrite(descriptor, b"end", offset) == 3
    assert os.write(descriptor, b"q" * 100_000) == 100_000
    assert os.fstat(descriptor).st_size == offset + 3
    assert os.pread(descriptor, 3, offset) == b"end"
    for hole in (200_000, (1 << 31) - 2, offset - 4):
        assert os.pread(descriptor, 4, hole) == bytes(4)
    os.close(descriptor)


def test_a_hole_takes_no_space(mounted: MountedVolume) -> None:
    """S-holes."""
    with open(mounted.mountpoint / "f", "wb") as file:
        file.write(b"start")
        file.seek(10 << 30)
        file.write(b"end")
    os.truncate(mounted.mountpoint / "f", 20 << 30)
    assert bytes_on_stripes(mounted) < 1 << 20


def test_space_reserved_ahead_is_given_back_at_close(mounted: MountedVolume) -> None:
    with open(mounted.mountpoint / "f", "wb") as file:
        file.write(b"x" * (3 << 20))
    wait_until(lambda: bytes_on_stripes(mounted) < (3 << 20) + (128 << 10), "reserved space to be given back")


@pytest.mark.parametrize("size", [0, 1, 4095, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 17])
def test_what_was_cut_off_reads_as_zeros_when_the_file_grows_again(place: Path, size: int) -> None:
    """S-holes."""
    full = 2 * CHUNK + 100
    content = random.Random(size).randbytes(full)
    (place / "f").write_bytes(content)
    os.truncate(place / "f", size)
    assert (place / "f").stat().st_size == size
    os.truncate(place / "f", full + 50)
    found = (place / "f").read_bytes()
    assert len(found) == full + 50
    assert found[:size] == content[:size]
    assert not any(found[size:])


def test_truncating_beside_an_open_writer_and_a_reader(place: Path) -> None:
    writer = os.open(place / "f", os.O_CREAT | os.O_WRONLY)
    reader = os.open(place / "f", os.O_RDONLY)
    os.write(writer, b"x" * 100_000)
    assert os.pread(reader, 1, 99_999) == b"x"
    os.ftruncate(writer, 10_000)
    assert os.pread(reader, 20_000, 0) == b"x" * 10_000
    os.write(writer, b"y")  # its offset is where it was
    assert os.fstat(reader).st_size == 100_001
    assert os.pread(reader, 100_000, 9_999) == b"x" + bytes(90_000) + b"y"
    os.close(writer)
    os.close(reader)


def test_sizes_that_cannot_be_are_refused(place: Path) -> None:
    (place / "f").touch()
    assert errno_of(os.truncate, place / "f", -1) == errno.EINVAL
    assert errno_of(os.truncate, place / "missing", 0) == errno.ENOENT


def test_posix_fallocate_makes_a_file_of_that_size(place: Path) -> None:
    """S-no-fallocate."""
    descriptor = os.open(place / "f", os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(descriptor, 0, 2 << 20)
    assert os.fstat(descriptor).st_size == 2 << 20
    os.pwrite(descriptor, b"x", 1 << 20)
    assert os.pread(descriptor, 3, (1 << 20) - 1) == b"\0x\0"
    os.close(descriptor)


def test_what_the_mount_cannot_do_is_not_supported_rather_than_wrong(on_mount: Path) -> None:
    """S-no-tmpfile, S-no-reflink, S-no-seek-hole: so that programs fall back: cp from reflink, tempfile from unnamed files."""
    (on_mount / "s").write_bytes(b"x" * 5000)
    assert errno_of(os.open, on_mount, os.O_TMPFILE | os.O_RDWR) == errno.EOPNOTSUPP
    with open(on_mount / "s", "rb") as source, open(on_mount / "t", "wb") as target:
        number = errno_of(fcntl.ioctl, target.fileno(), _FICLONE, source.fileno())
        assert number in {errno.EOPNOTSUPP, errno.ENOTTY}
        assert os.lseek(source.fileno(), 0, os.SEEK_HOLE) == 5000
        assert os.lseek(source.fileno(), 100, os.SEEK_DATA) == 100


@pytest.mark.parametrize("option", ["--reflink=auto", "--sparse=always", "--archive"])
def test_cp_copies_a_sparse_file(place: Path, option: str) -> None:
    with open(place / "s", "wb") as file:
        file.write(b"start")
        file.seek(3 << 20)
        file.write(b"end")
    subprocess.run(["cp", option, place / "s", place / "t"], check=True, timeout=60)
    assert (place / "t").read_bytes() == (place / "s").read_bytes()


def test_a_sparse_archive_keeps_every_byte(place: Path) -> None:
    (place / "z").write_bytes(b"A" * 3_000_000)
    (place / "t").write_bytes(b"x")
    with open(place / "s", "wb") as file:
        file.seek(2 << 20)
        file.write(b"end")
    (place / "out").mkdir()
    subprocess.run(["tar", "-S", "-C", place, "-cf", place / "a.tar", "z", "t", "s"], check=True, timeout=60)
    subprocess.run(["tar", "-C", place / "out", "-xf", place / "a.tar"], check=True, timeout=60)
    for name in ("z", "t", "s"):
        assert (place / "out" / name).read_bytes() == (place / name).read_bytes()


def test_a_file_with_data_never_claims_to_have_no_blocks(place: Path) -> None:
    """S-blocks."""
    (place / "large").write_bytes(b"A" * 3_000_000)
    (place / "small").write_bytes(b"x")
    for name in ("large", "small"):
        with open(place / name, "rb") as file:
            os.fsync(file.fileno())
        assert (place / name).stat().st_blocks > 0


def test_statfs_makes_sense(on_mount: Path, tmp_path: Path) -> None:
    """S-statfs."""
    found = os.statvfs(on_mount)
    assert 0 < found.f_bavail <= found.f_bfree <= found.f_blocks
    assert found.f_frsize > 0
    assert 0 < found.f_ffree <= found.f_files
    assert found.f_namemax == 255
    native = shutil.disk_usage(tmp_path)
    usage = shutil.disk_usage(on_mount)
    assert 0 < usage.free <= native.free + (1 << 30)  # others write meanwhile
    assert usage.total == native.total  # two stripes on one device are one device
    subprocess.run(["df", "-h", on_mount], check=True, capture_output=True, timeout=30)
