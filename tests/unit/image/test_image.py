from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import faults
from ckptfs.image import IMAGES_DIRECTORY, Image, Layout, list_lanes, syscalls, unlink_image
from ckptfs.image import lane as lane_module

MiB = 2**20
CHUNK = 64 * 1024


def make_stripes(directory: Path, count: int) -> list[Path]:
    stripes = [directory / f"stripe{number}" for number in range(count)]
    for stripe in stripes:
        (stripe / IMAGES_DIRECTORY).mkdir(parents=True)
    return stripes


@pytest.fixture
def stripes(tmp_path: Path) -> list[Path]:
    return make_stripes(tmp_path, 3)


@pytest.fixture
def wide(stripes: list[Path]) -> Iterator[Image]:
    image = Image(7, Layout(CHUNK, 3, 1), stripes, new=True)
    yield image
    image.close()


@pytest.fixture
def narrow(stripes: list[Path]) -> Iterator[Image]:
    image = Image(8, Layout(CHUNK, 1, 0), stripes[:1], new=True)
    yield image
    image.close()


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    faults.arm("")


def read_nowait(image: Image, offset: int, length: int) -> bytes | None:
    """What the image has in memory of a range, or None."""
    target = bytearray(length)
    return bytes(target) if image.read_into_nowait(offset, memoryview(target)) else None


def test_what_was_written_is_read_back(wide: Image) -> None:
    data = os.urandom(5 * CHUNK + 123)
    wide.write(777, data)
    assert wide.read(777, len(data)) == data
    assert wide.layout.size_implied_by(wide.lane_sizes()) == 777 + len(data)


def test_chunks_lie_on_the_stripes_in_turn(wide: Image, stripes: list[Path]) -> None:
    wide.write(0, b"a" * CHUNK + b"b" * CHUNK + b"c" * CHUNK)
    for stripe, letter in zip(stripes, (b"c", b"a", b"b"), strict=True):
        (lane,) = (stripe / IMAGES_DIRECTORY).iterdir()
        assert lane.read_bytes() == letter * CHUNK


def test_a_lane_never_written_does_not_exist_and_reads_as_zeros(wide: Image, stripes: list[Path]) -> None:
    wide.write(0, b"x")
    assert wide.read(0, 3 * CHUNK) == b"x" + bytes(3 * CHUNK - 1)
    assert [list(list_lanes(stripe)) for stripe in stripes] == [[], [(7, 1)], []]
    assert wide.lane_sizes() == [0, 1, 0]


def test_reading_beyond_the_end_gives_zeros(narrow: Image) -> None:
    narrow.write(0, b"abc")
    assert narrow.read(1, 10) == b"bc" + bytes(8)
    assert narrow.read(5000, 4) == bytes(4)


def test_a_hole_of_4_gib_costs_nothing_and_offsets_have_64_bits(wide: Image) -> None:
    offset = 5 * 2**32 + 12345
    wide.reserve(0, 1)
    wide.write(0, b"x")
    wide.reserve(offset, 3)
    wide.write(offset, b"end")
    assert wide.read(offset - 2, 5) == b"\0\0end"
    assert wide.layout.size_implied_by(wide.lane_sizes()) == offset + 3
    assert wide.allocated_bytes() < MiB
    wide.punch(2**33, offset - 2**33 + 1)
    assert wide.read(offset, 3) == b"\0nd"


def test_write_span_writes_many_buffers_as_one_run(narrow: Image) -> None:
    pieces = [bytes([number % 251]) * (number % 7) for number in range(3000)]
    narrow.write_span(0, 100, pieces)
    whole = b"".join(pieces)
    assert narrow.read(100, len(whole)) == whole


def test_a_short_write_is_continued(narrow: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def at_most_1000(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return real(descriptor, [memoryview(buffers[0])[:1000]], offset)

    monkeypatch.setattr(os, "pwritev", at_most_1000)
    data = os.urandom(10_500)
    narrow.write_span(0, 0, [data[:3333], memoryview(data)[3333:]])
    assert narrow.read(0, len(data)) == data


def test_bytes_cut_off_come_back_as_zeros(wide: Image) -> None:
    data = os.urandom(6 * CHUNK)
    wide.write(0, data)
    wide.truncate(CHUNK + 10)
    assert wide.layout.size_implied_by(wide.lane_sizes()) == CHUNK + 10
    wide.write(6 * CHUNK, b"!")
    assert wide.read(0, 6 * CHUNK) == data[: CHUNK + 10] + bytes(5 * CHUNK - 10)


def test_truncating_to_a_larger_size_changes_no_lane(wide: Image) -> None:
    wide.write(0, b"abc")
    wide.truncate(100 * CHUNK)
    assert wide.lane_sizes() == [0, 3, 0]


def test_reserving_grows_no_lane_and_a_sequential_writer_gets_some_ahead(narrow: Image) -> None:
    narrow.reserve(0, MiB)
    assert narrow.lane_sizes() == [0]
    assert 2 * MiB <= narrow.allocated_bytes() < 3 * MiB
    assert not narrow.needs_reserve(0, 2 * MiB)
    assert narrow.needs_reserve(2 * MiB, 1)
    assert narrow.read(0, MiB) == bytes(MiB)


def test_without_ahead_only_what_was_asked_for_is_reserved(narrow: Image) -> None:
    narrow.reserve(0, MiB, ahead=False)
    assert narrow.allocated_bytes() < 2 * MiB
    assert narrow.needs_reserve(MiB, 1)


def test_what_is_reserved_ahead_is_bounded(narrow: Image) -> None:
    position = 0
    while position < 80 * MiB:
        narrow.reserve(position, 4 * MiB)
        position += 4 * MiB
    assert narrow.allocated_bytes() <= position + lane_module.MAX_AHEAD_BYTES + MiB


def test_two_reservations_of_the_same_space_at_once_both_succeed(
    narrow: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    def be_overtaken(_point: str) -> None:
        monkeypatch.undo()
        narrow.reserve(0, MiB)

    monkeypatch.setattr(faults, "hit", be_overtaken)
    narrow.reserve(0, CHUNK)
    assert not narrow.needs_reserve(0, MiB)


def test_trim_gives_reserved_space_back(narrow: Image) -> None:
    narrow.reserve(0, 8 * MiB)
    narrow.write(0, b"x" * 100_000)
    narrow.trim()
    assert narrow.allocated_bytes() < 200_000
    assert narrow.read(0, 100_001) == b"x" * 100_000 + b"\0"
    assert narrow.needs_reserve(100_000, 1)


def test_trim_gives_back_what_a_writer_left_behind_in_the_middle(narrow: Image) -> None:
    narrow.reserve(0, 4 * MiB)
    narrow.write(0, b"a" * 10_000)
    narrow.reserve(64 * MiB, 1000)
    narrow.write(64 * MiB, b"b" * 1000)
    narrow.trim()
    assert narrow.allocated_bytes() < 200_000
    assert narrow.read(0, 10_000) == b"a" * 10_000
    assert narrow.read(64 * MiB, 1000) == b"b" * 1000


def test_trim_gives_back_what_an_earlier_process_reserved(narrow: Image, stripes: list[Path]) -> None:
    narrow.reserve(0, 8 * MiB)
    narrow.write(0, b"x")
    again = Image(8, Layout(CHUNK, 1, 0), stripes[:1])
    again.trim()
    assert again.allocated_bytes() < MiB
    again.close()


def test_truncating_drops_what_is_reserved_beyond(narrow: Image) -> None:
    narrow.reserve(0, 8 * MiB)
    narrow.truncate(0)
    assert narrow.allocated_bytes() == 0
    assert narrow.needs_reserve(0, 1)


def test_a_punched_range_reads_as_zeros_takes_no_space_and_has_to_be_reserved_again(wide: Image) -> None:
    data = os.urandom(12 * CHUNK)
    wide.reserve(0, len(data))
    wide.write(0, data)
    before = wide.allocated_bytes()
    wide.punch(CHUNK, 8 * CHUNK)
    assert wide.read(0, len(data)) == data[:CHUNK] + bytes(8 * CHUNK) + data[9 * CHUNK :]
    assert wide.allocated_bytes() <= before - 8 * CHUNK
    assert wide.layout.size_implied_by(wide.lane_sizes()) == len(data)
    assert wide.needs_reserve(CHUNK, 1)


def test_an_image_is_widened_before_its_second_chunk_is_written(narrow: Image, stripes: list[Path]) -> None:
    data = os.urandom(CHUNK)
    narrow.reserve(0, CHUNK)
    narrow.write(0, data)
    narrow.widen(Layout(CHUNK, 3, 0), stripes)
    assert narrow.stripes == stripes
    narrow.write(CHUNK, data * 4)
    assert narrow.read(0, 5 * CHUNK) == data * 5
    assert narrow.lane_sizes() == [2 * CHUNK, 2 * CHUNK, CHUNK]


def test_widening_is_refused_where_bytes_would_have_to_move(narrow: Image, stripes: list[Path]) -> None:
    for layout, on in (
        (Layout(CHUNK * 2, 3, 0), stripes),
        (Layout(CHUNK, 3, 1), stripes),
        (Layout(CHUNK, 3, 0), stripes[::-1]),
        (Layout(CHUNK, 2, 0), stripes),
    ):
        with pytest.raises(ValueError, match="image"):
            narrow.widen(layout, on)
    narrow.write(CHUNK, b"x")
    with pytest.raises(ValueError, match="second chunk"):
        narrow.widen(Layout(CHUNK, 3, 0), stripes)


def test_cached_bytes_are_read_without_blocking_and_others_are_not(wide: Image) -> None:
    assert read_nowait(wide, 0, 10) is None
    wide.write(0, b"z" * 3 * CHUNK)
    assert read_nowait(wide, 10, 2 * CHUNK) == b"z" * 2 * CHUNK
    assert read_nowait(wide, 3 * CHUNK - 1, 2) is None


def test_a_new_image_empties_a_lane_file_in_its_way(stripes: list[Path]) -> None:
    left = Image(9, Layout(CHUNK, 1, 0), stripes[:1], new=True)
    left.write(0, b"old old old")
    left.close()
    image = Image(9, Layout(CHUNK, 1, 0), stripes[:1], new=True)
    assert image.read(0, 3) == bytes(3)
    image.write(4, b"new")
    assert image.read(0, 11) == b"\0\0\0\0new\0\0\0\0"
    image.close()


def test_an_image_that_is_not_new_never_empties_a_lane(stripes: list[Path]) -> None:
    first, second = (Image(9, Layout(CHUNK, 1, 0), stripes[:1]) for _ in range(2))
    assert second.read(0, 3) == bytes(3)
    first.write(0, b"abc")
    second.write(3, b"d")
    assert first.read(0, 4) == b"abcd"
    first.close()
    second.close()


def test_a_closed_image_opens_again_at_its_next_use(wide: Image) -> None:
    wide.write(0, b"abc")
    wide.close()
    assert wide.read(0, 3) == b"abc"
    wide.write(3, b"d")
    assert wide.read(0, 4) == b"abcd"


def test_lanes_of_an_image_are_listed_and_unlinked(wide: Image, stripes: list[Path]) -> None:
    wide.write(0, bytes(3 * CHUNK))
    (stripes[0] / IMAGES_DIRECTORY / "lost+found").touch()
    assert [list(list_lanes(stripe)) for stripe in stripes] == [[(7, 0)], [(7, 1)], [(7, 2)]]
    unlink_image(7, 3, stripes)
    unlink_image(7, 3, stripes)
    assert [list(list_lanes(stripe)) for stripe in stripes] == [[], [], []]


def flushed_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    flushed: list[str] = []
    for call in ("fdatasync", "fsync"):
        real = getattr(os, call)

        def record(descriptor: int, real: object = real) -> None:
            flushed.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
            real(descriptor)  # type: ignore[operator]

        monkeypatch.setattr(os, call, record)
    return flushed


def test_sync_flushes_written_lanes_once_and_the_directories_of_new_ones(
    wide: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = flushed_files(monkeypatch)
    wide.sync()
    assert flushed == []
    wide.write(0, b"x" * 2 * CHUNK)
    wide.sync()
    names = [f"{7:016x}.1", f"{7:016x}.2"]
    assert sorted(flushed) == [*names, "images", "images"]
    assert all(flushed.index(name) < len(flushed) - 1 - flushed[::-1].index("images") for name in names)
    flushed.clear()
    wide.sync()
    assert flushed == []
    wide.write(0, b"y")
    wide.truncate(10)
    wide.sync()
    assert sorted(flushed) == names


def test_sync_flushes_lanes_that_an_earlier_process_wrote(
    narrow: Image, stripes: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow.write(0, b"x")
    flushed = flushed_files(monkeypatch)
    again = Image(8, Layout(CHUNK, 1, 0), stripes[:1])
    again.sync()
    again.close()
    assert flushed == [f"{8:016x}.0", "images"]


def test_a_write_during_a_flush_of_the_filesystem_is_flushed_again(wide: Image, stripes: list[Path]) -> None:
    wide.write(0, b"x" * 2 * CHUNK)
    covered = wide.unsynced()
    wide.write(0, b"y")
    for stripe in stripes:
        syscalls.syncfs(stripe)
    wide.synced(covered)
    assert len(covered) == 2
    assert [lane for lane, _ in wide.unsynced()] == [wide._lanes[1]]


def test_bytes_lost_in_a_flush_are_reported_at_every_later_flush(
    narrow: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow.write(0, b"x")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "lost")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="lost"):
            narrow.sync()
    with pytest.raises(OSError, match="an earlier flush failed: lost"):
        narrow.sync()
    with pytest.raises(OSError, match="an earlier flush failed: lost"):
        narrow.synced(narrow.unsynced())


def test_a_fault_before_a_flush_loses_nothing(wide: Image) -> None:
    wide.write(0, bytes(3 * CHUNK))
    faults.arm("lane.fsync=EIO")
    with pytest.raises(OSError, match="fault point"):
        wide.sync()
    faults.arm("")
    wide.sync()
    assert wide.unsynced() == []


@pytest.mark.parametrize(
    ("point", "call"),
    [
        ("lane.write", lambda image: image.write(0, b"x")),
        ("lane.read", lambda image: image.read(0, 1)),
        ("lane.reserve", lambda image: image.reserve(2**30, 1)),
    ],
)
def test_fault_points_of_lanes_are_reached(narrow: Image, point: str, call: object) -> None:
    narrow.write(0, b"abc")
    faults.arm(f"{point}=ENOSPC")
    with pytest.raises(OSError, match=point) as raised:
        call(narrow)  # type: ignore[operator]
    assert raised.value.errno == errno.ENOSPC


@pytest.fixture
def no_fallocate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    monkeypatch.setattr(lane_module, "_devices_without_fallocate", set[int]())
    monkeypatch.setattr(syscalls, "reserve_space", refuse)
    monkeypatch.setattr(syscalls, "punch_hole", refuse)


@pytest.mark.usefixtures("no_fallocate")
def test_without_fallocate_reserving_compares_with_free_space_and_says_so(narrow: Image) -> None:
    assert narrow.reserves
    narrow.reserve(0, MiB)
    assert not narrow.reserves
    assert narrow.needs_reserve(0, MiB)
    with pytest.raises(OSError, match="No space left") as raised:
        narrow.reserve(0, 2**60)
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.usefixtures("no_fallocate")
def test_without_fallocate_a_punched_range_still_reads_as_zeros(wide: Image) -> None:
    data = os.urandom(4 * CHUNK)
    wide.write(0, data)
    wide.punch(10, 2 * CHUNK)
    wide.punch(3 * CHUNK, 9 * CHUNK)
    assert wide.read(0, 4 * CHUNK) == data[:10] + bytes(2 * CHUNK) + data[2 * CHUNK + 10 : 3 * CHUNK] + bytes(CHUNK)
    assert wide.layout.size_implied_by(wide.lane_sizes()) == 4 * CHUNK


def test_different_lanes_are_written_at_once(wide: Image) -> None:
    data = os.urandom(3 * CHUNK)
    rows = 30
    start = threading.Barrier(3)

    def fill(lane: int) -> None:
        start.wait(10)
        for span in wide.layout.spans(0, rows * len(data)):
            if span.lane == lane:
                at = span.offset % len(data)
                wide.write_span(lane, span.lane_offset, [memoryview(data)[at : at + span.length]])

    threads = [threading.Thread(target=fill, args=(lane,)) for lane in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wide.read(0, rows * len(data)) == data * rows


def cached_bytes(path: Path) -> int:
    shown = subprocess.run(
        ["fincore", "-b", "-n", "-r", "-o", "RES", str(path)], capture_output=True, text=True, check=True
    )
    return int(shown.stdout or 0)


@pytest.mark.skipif(shutil.which("fincore") is None, reason="needs fincore (util-linux) to look into the page cache")
def test_what_was_read_does_not_stay_in_the_page_cache(narrow: Image, stripes: list[Path]) -> None:
    size = 64 * MiB
    for offset in range(0, size, MiB):
        narrow.write(offset, bytes(MiB))
    narrow.sync()
    (lane,) = (stripes[0] / IMAGES_DIRECTORY).iterdir()
    if cached_bytes(lane) == 0:
        pytest.skip("the filesystem has no page cache")
    for offset in range(0, size, MiB // 8):
        narrow.read(offset, MiB // 8)
    assert cached_bytes(lane) <= size // 4


@pytest.fixture
def small_ext4(tmp_path: Path) -> Iterator[Path]:
    device = tmp_path / "device"
    mountpoint = tmp_path / "mounted"
    mountpoint.mkdir()
    with device.open("wb") as file:
        file.truncate(64 * MiB)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(device)], check=True, capture_output=True)
    made = subprocess.run(
        ["mount", "-o", "loop", str(device), str(mountpoint)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        pytest.skip(f"cannot mount a loop device here: {made.stderr.strip()}")
    try:
        yield mountpoint
    finally:
        subprocess.run(["umount", str(mountpoint)], check=True)


@pytest.mark.root
def test_a_full_device_refuses_the_reservation_and_what_was_reserved_can_be_written(small_ext4: Path) -> None:
    (stripe,) = make_stripes(small_ext4, 1)
    first = Image(1, Layout(CHUNK, 1, 0), [stripe], new=True)
    second = Image(2, Layout(CHUNK, 1, 0), [stripe], new=True)
    try:
        position = 0
        refused = None
        while position < 64 * MiB and refused is None:
            try:
                first.reserve(position, MiB)
            except OSError as why:
                refused = why.errno
            else:
                first.write(position, b"1" * MiB)
                position += MiB
        assert refused == errno.ENOSPC
        assert position > 40 * MiB
        assert first.read(position - 4, 8) == b"1111\0\0\0\0"
        first.truncate(position - 8 * MiB)
        second.reserve(0, 4 * MiB, ahead=False)
        with pytest.raises(OSError, match="No space left"):
            first.reserve(position - 8 * MiB, 8 * MiB)
        second.write(0, b"2" * 4 * MiB)
        second.sync()
        assert second.read(0, 4 * MiB) == b"2" * 4 * MiB
        first.trim()
        space = os.statvfs(stripe)
        assert space.f_bavail * space.f_frsize > 3 * MiB
    finally:
        first.close()
        second.close()


def test_the_room_loads_neither_the_metadata_nor_the_event_loop() -> None:
    code = "import sys, ckptfs.image; sys.exit(bool({'trio', 'sqlalchemy', 'pyfuse3'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
