"""Writing in every way that programs do: flags, duplicated and inherited descriptors, appends, many at once."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.mounted import wait_until
from tests.support.system import errno_of, in_child

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.mounted import MountedVolume

CHUNK = 8 << 20


@pytest.mark.parametrize("flags", [0, os.O_SYNC, os.O_DSYNC], ids=["plain", "sync", "dsync"])
@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR], ids=["write-only", "read-write"])
def test_what_was_written_is_read(place: Path, access: int, flags: int) -> None:
    content = os.urandom(3_000_001)
    descriptor = os.open(place / "f", os.O_CREAT | access | flags)
    assert os.write(descriptor, content) == len(content)
    assert (place / "f").read_bytes() == content
    os.close(descriptor)
    assert (place / "f").read_bytes() == content


@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR], ids=["write-only", "read-write"])
def test_a_synchronous_write_is_sealed_when_it_returns(on_mount: Path, access: int) -> None:
    """S-o-sync."""
    descriptor = os.open(on_mount / "f", os.O_CREAT | access | os.O_SYNC)
    os.write(descriptor, b"x" * 1000)
    assert os.getxattr(on_mount / "f", "user.ckptfs.state") == b"sealed"
    os.close(descriptor)


def test_direct_io_writes_and_reads_aligned_blocks(place: Path) -> None:
    """S-o-direct."""
    with mmap.mmap(-1, 1 << 20) as aligned:
        aligned[:] = os.urandom(1 << 20)
        descriptor = os.open(place / "f", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
        assert os.pwrite(descriptor, aligned, 0) == 1 << 20
        assert os.pwrite(descriptor, aligned, 3 << 20) == 1 << 20
        os.close(descriptor)
        written = bytes(aligned)
        descriptor = os.open(place / "f", os.O_RDONLY | os.O_DIRECT)
        assert os.preadv(descriptor, [aligned], 3 << 20) == 1 << 20
        assert bytes(aligned) == written
        assert os.preadv(descriptor, [aligned], 1 << 20) == 1 << 20
        assert bytes(aligned) == bytes(1 << 20)
        assert os.preadv(descriptor, [aligned], 4 << 20) == 0
        os.close(descriptor)
    assert (place / "f").read_bytes() == written + bytes(2 << 20) + written


def test_random_writes_leave_what_they_leave_in_memory(place: Path) -> None:
    """S-write: around the borders of chunks too, where the bytes go to another stripe; again after fsync, and through a new handle."""
    random_numbers = random.Random(3)
    expected = bytearray()
    descriptor = os.open(place / "f", os.O_RDWR | os.O_CREAT)

    def write(data: bytes, offset: int) -> None:
        assert os.pwrite(descriptor, data, offset) == len(data)
        expected.extend(bytes(max(0, offset + len(data) - len(expected))))
        expected[offset : offset + len(data)] = data

    for part in range(3):
        for _ in range(60):
            near = random_numbers.choice((0, CHUNK, 2 * CHUNK))
            offset = max(0, near + random_numbers.randrange(-70_000, 70_000))
            write(random_numbers.randbytes(random_numbers.choice((1, 96, 2024, 65_536))), offset)
        if part == 0:
            os.fsync(descriptor)
        if part == 1:
            os.close(descriptor)
            descriptor = os.open(place / "f", os.O_RDWR)
    assert os.pread(descriptor, len(expected) + 9, 0) == expected
    os.close(descriptor)
    assert (place / "f").read_bytes() == expected


def test_a_header_is_rewritten_after_megabytes_of_body(place: Path) -> None:
    body = os.urandom(4_000_000)
    with open(place / "f", "wb") as file:
        file.write(b"H" * 183 + body)
        file.seek(0)
        file.write(b"h" * 55)
        file.seek(0, os.SEEK_END)
        file.write(b"tail")
    assert (place / "f").read_bytes() == b"h" * 55 + b"H" * 128 + body + b"tail"


def test_appends_go_to_the_end_whatever_the_offset(place: Path) -> None:
    """S-append."""
    one = os.open(place / "f", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    other = os.open(place / "f", os.O_RDWR | os.O_APPEND)
    os.write(one, b"1")
    os.write(other, b"2")
    os.lseek(one, 0, os.SEEK_SET)
    os.write(one, b"3")
    os.pwrite(one, b"4", 0)  # Linux appends here too
    os.truncate(place / "f", 2)
    os.write(other, b"5")
    os.close(one)
    os.close(other)
    assert (place / "f").read_bytes() == b"125"


def test_a_log_grows_by_opening_appending_and_closing(place: Path) -> None:
    for number in range(100):
        with open(place / "events", "ab") as file:
            file.write(b"%038d\n" % number)
    lines = (place / "events").read_bytes().split()
    assert [int(line) for line in lines] == list(range(100))


APPENDER = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for number in range(100):
    os.write(descriptor, b"%s %06d %s\\n" % (sys.argv[2].encode(), number, b"." * (number * 37 % 500)))
os.close(descriptor)
"""


def test_processes_that_append_to_one_file_tear_no_line(place: Path) -> None:
    """S-append."""
    writers = [subprocess.Popen([sys.executable, "-c", APPENDER, str(place / "log"), name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    lines = [line.split() for line in (place / "log").read_bytes().splitlines()]
    for name in (b"a", b"b", b"c"):
        mine = [line for line in lines if line[0] == name]
        assert [int(line[1]) for line in mine] == list(range(100))
        assert all(line[2:] == ([b"." * (n * 37 % 500)] if n * 37 % 500 else []) for n, line in enumerate(mine))


def test_threads_fill_disjoint_parts_of_one_file(place: Path) -> None:
    blocks = [os.urandom(300_007) for _ in range(40)]
    descriptor = os.open(place / "f", os.O_CREAT | os.O_WRONLY)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: os.pwrite(descriptor, blocks[number], number * 300_007), range(40)))
    os.close(descriptor)
    assert (place / "f").read_bytes() == b"".join(blocks)


def test_a_duplicate_writes_on_after_the_other_is_closed(place: Path) -> None:
    """S-close."""
    descriptor = os.open(place / "f", os.O_CREAT | os.O_WRONLY)
    duplicate = os.dup(descriptor)
    os.write(duplicate, b"one")
    os.close(duplicate)  # a FLUSH reaches the daemon here
    os.write(descriptor, b"two")
    duplicate = os.dup(descriptor)
    os.close(descriptor)
    os.write(duplicate, b"three")
    os.close(duplicate)
    assert (place / "f").read_bytes() == b"onetwothree"


def test_a_child_writes_through_the_descriptor_it_inherited(place: Path) -> None:
    """S-close."""
    descriptor = os.open(place / "f", os.O_CREAT | os.O_RDWR)
    os.write(descriptor, b"parent ")
    assert in_child(lambda: (os.write(descriptor, b"child "), os.close(descriptor))) == 0
    os.write(descriptor, b"parent")
    assert os.pread(descriptor, 100, 0) == b"parent child parent"
    os.close(descriptor)
    assert (place / "f").read_bytes() == b"parent child parent"


def test_a_killed_writer_leaves_the_prefix_it_wrote_and_no_lock(place: Path) -> None:
    program = (
        "import fcntl, os, sys\nd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\nfcntl.flock(d, fcntl.LOCK_EX)\n"
        "while os.lseek(d, 0, 1) < 200 << 20: os.write(d, b'k' * 65536)"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(place / "f")])
    try:
        wait_until(lambda: (place / "f").exists() and (place / "f").stat().st_size > 1 << 20, "the first megabyte")
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.wait(30)
    size = (place / "f").stat().st_size
    assert set((place / "f").read_bytes()) == {ord("k")}
    assert size >= 1 << 20
    with open(place / "f", "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_readers_see_at_once_what_a_writer_wrote(place: Path) -> None:
    """S-visible: in their page cache lies what was there before, and the writer goes around that cache."""
    total = b""
    with open(place / "f", "wb", buffering=0) as writer, open(place / "f", "rb", buffering=0) as reader:
        for count in (1, 4095, 100_000, 1 << 20, 3):
            data = os.urandom(count)
            writer.write(data)
            total += data
            assert reader.seek(0, os.SEEK_END) == len(total)
            assert os.pread(reader.fileno(), len(total) + 1, 0) == total
            assert (place / "f").stat().st_size == len(total)
        os.pwrite(writer.fileno(), b"#" * 5000, 2000)
        assert os.pread(reader.fileno(), 5002, 1999) == total[1999:2000] + b"#" * 5000 + total[7000:7001]


def test_a_reader_beside_a_writer_sees_a_growing_prefix(place: Path) -> None:
    content = random.Random(1).randbytes(24 << 20)
    (place / "f").touch()

    def write() -> None:
        with open(place / "f", "wb", buffering=0) as file:
            file.writelines(content[start : start + (1 << 20)] for start in range(0, len(content), 1 << 20))

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    try:
        while seen < len(content):
            found = (place / "f").read_bytes()
            assert len(found) >= seen
            assert found == content[: len(found)]
            seen = len(found)
            assert writer.is_alive() or (place / "f").stat().st_size == len(content)
    finally:
        writer.join()


def test_an_exclusive_creation_refuses_what_is_there(place: Path) -> None:
    (place / "f").write_text("x")
    (place / "d").mkdir()
    for name in ("f", "d"):
        assert errno_of(os.open, place / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY) == errno.EEXIST
    assert (place / "f").read_text() == "x"


def test_vectored_and_empty_writes(place: Path) -> None:
    descriptor = os.open(place / "f", os.O_CREAT | os.O_RDWR)
    assert os.write(descriptor, b"") == 0
    assert os.fstat(descriptor).st_size == 0
    assert os.pwritev(descriptor, [b"a" * 100, b"", b"b" * 5_000_000], 10) == 5_000_100
    first, second = bytearray(110), bytearray(10)
    assert os.preadv(descriptor, [first, second], 0) == 120
    assert bytes(first) + bytes(second) == bytes(10) + b"a" * 100 + b"b" * 10
    os.close(descriptor)


def test_a_handle_for_reading_does_not_write_and_the_other_way_round(place: Path) -> None:
    (place / "f").write_bytes(b"x")
    reader = os.open(place / "f", os.O_RDONLY)
    writer = os.open(place / "f", os.O_WRONLY)
    assert errno_of(os.write, reader, b"y") == errno.EBADF
    assert errno_of(os.read, writer, 1) == errno.EBADF
    assert errno_of(os.ftruncate, reader, 0) == errno.EINVAL
    os.close(reader)
    os.close(writer)


def test_many_handles_are_open_at_once(place: Path) -> None:
    (place / "one").write_bytes(b"x" * 100_000)
    handles = [os.open(place / "one", os.O_RDONLY) for _ in range(200)]
    handles += [os.open(place / f"f{number}", os.O_CREAT | os.O_RDWR) for number in range(200)]
    try:
        for number, handle in enumerate(handles[200:]):
            os.write(handle, b"%d" % number)
        assert all(os.pread(handle, 10, 99_995) == b"xxxxx" for handle in handles[:200])
        assert [os.pread(handle, 9, 0) for handle in handles[200:]] == [b"%d" % number for number in range(200)]
    finally:
        for handle in handles:
            os.close(handle)


def test_truncating_on_opening_beside_a_reader_is_seen_by_it(place: Path) -> None:
    (place / "f").write_bytes(b"old" * 100_000)
    with open(place / "f", "rb", buffering=0) as reader:
        assert reader.read(3) == b"old"
        (place / "f").write_bytes(b"new")
        assert os.fstat(reader.fileno()).st_size == 3
        assert os.pread(reader.fileno(), 100, 0) == b"new"


def test_syncing_a_directory_is_cheap_and_allowed(place: Path) -> None:
    started_s = time.monotonic()
    for number in range(20):
        descriptor = os.open(place / str(number), os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, b"x")
        os.fsync(descriptor)
        os.close(descriptor)
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory)
        os.fdatasync(directory)
        os.close(directory)
    os.sync()
    assert time.monotonic() - started_s < 20


@pytest.mark.parametrize("place_of", ["mountpoint", "directory"])
def test_a_volume_does_not_serve_itself(volume: MountedVolume, place_of: str) -> None:
    """A daemon that needs its own mount to answer waits for ever."""
    above = volume.directory.parent if place_of == "directory" else volume.stripes[0].parent
    done = volume.ckptfs("mount", volume.directory, above, check=False)
    assert done.returncode != 0
    assert str(above) in done.stderr
    assert not os.path.ismount(above)


def _copy_file_range(source: int, target: int) -> int:
    return os.copy_file_range(source, target, 1 << 30)


def _sendfile(source: int, target: int) -> int:
    return os.sendfile(target, source, None, 1 << 30)


@pytest.mark.parametrize("copy", [_copy_file_range, _sendfile])
def test_the_kernel_copies_whole_files(place: Path, copy: Callable[[int, int], int]) -> None:
    """S-copy-range."""
    content = os.urandom(3 << 20) + bytes(1 << 20) + b"t"
    (place / "s").write_bytes(content)
    source = os.open(place / "s", os.O_RDONLY)
    target = os.open(place / "t", os.O_CREAT | os.O_WRONLY)
    while copy(source, target):
        pass
    os.close(source)
    os.close(target)
    assert (place / "t").read_bytes() == content
