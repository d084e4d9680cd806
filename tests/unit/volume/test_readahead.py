"""Reading ahead over the lanes of one open file: what is asked for, and when."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from ckptfs.image.image import Image
from ckptfs.image.layout import Layout
from ckptfs.volume.readahead import ReadAhead

CHUNK = 8 << 20
MIB = 1 << 20


class Threads:
    """Runs calls once its gate is open."""

    def __init__(self) -> None:
        self.gate = trio.Event()
        self.gate.set()

    async def read(self, call: Any, *args: object) -> object:
        await self.gate.wait()
        return call(*args)


class Watched:
    """An image of four lanes that notes what is read ahead."""

    def __init__(self, width: int = 4) -> None:
        self.layout = Layout(CHUNK, width, 0)
        self.asked: list[tuple[int, int]] = []
        self.error: OSError | None = None

    def read_ahead(self, offset: int, length: int) -> None:
        self.asked.append((offset, length))
        if self.error is not None:
            raise self.error

    def as_image(self) -> Image:
        return cast("Image", self)


def make(nursery: trio.Nursery) -> tuple[ReadAhead, Threads]:
    threads = Threads()
    landing = SimpleNamespace(threads=threads, start_soon=nursery.start_soon)
    return ReadAhead(cast("Any", landing)), threads


def read(ahead: ReadAhead, image: Watched, offset_mib: int, count: int, size: int = 1 << 30) -> None:
    for number in range(offset_mib, offset_mib + count):
        ahead.miss(image.as_image(), number * MIB, MIB, size)


async def test_a_sequential_reader_has_the_next_chunk_of_every_lane_read_ahead() -> None:
    image = Watched()
    async with trio.open_nursery() as nursery:
        ahead, _ = make(nursery)
        read(ahead, image, 0, 2)
    ends = {offset + length for offset, length in image.asked}
    lanes = {next(iter(image.layout.spans(offset, 1))).lane for offset, _ in image.asked}
    assert lanes == {0, 1, 2, 3}
    assert max(ends) == 2 * MIB + 4 * CHUNK
    assert len(image.asked) == len(set(image.asked))


async def test_an_image_of_one_lane_is_left_to_the_kernel() -> None:
    image = Watched(width=1)
    async with trio.open_nursery() as nursery:
        ahead, _ = make(nursery)
        read(ahead, image, 0, 16)
    assert not image.asked


async def test_nothing_is_read_ahead_while_everything_is_in_memory() -> None:
    image = Watched()
    async with trio.open_nursery() as nursery:
        ahead, _ = make(nursery)
        for number in range(16):
            ahead.hit(image.as_image(), number * MIB, MIB, 1 << 30)
    assert not image.asked


async def test_a_reader_that_jumps_about_has_nothing_read_ahead() -> None:
    image = Watched()
    async with trio.open_nursery() as nursery:
        ahead, _ = make(nursery)
        for number in (500, 100, 900, 300, 700):
            ahead.miss(image.as_image(), number * MIB, 4096, 1 << 30)
    assert not image.asked


async def test_nothing_is_read_ahead_beyond_the_end_of_the_file() -> None:
    image = Watched()
    async with trio.open_nursery() as nursery:
        ahead, _ = make(nursery)
        read(ahead, image, 0, 3, size=5 * MIB)
    assert sorted(image.asked) == [(2 * MIB, 2 * MIB), (4 * MIB, 2 * MIB)]


@pytest.mark.parametrize("error", [None, OSError(5, "a device failed")], ids=["fetched", "failed"])
async def test_a_read_waits_for_the_piece_that_is_on_its_way_whatever_becomes_of_it(error: OSError | None) -> None:
    image = Watched()
    image.error = error
    async with trio.open_nursery() as nursery:
        ahead, threads = make(nursery)
        threads.gate = trio.Event()
        read(ahead, image, 0, 2)
        read_done = trio.Event()

        async def wait() -> None:
            await ahead.wait(2 * MIB, MIB)
            read_done.set()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not read_done.is_set()
        threads.gate.set()
        await read_done.wait()


async def test_after_stop_nothing_runs_and_nothing_follows() -> None:
    image = Watched()
    async with trio.open_nursery() as nursery:
        ahead, threads = make(nursery)
        threads.gate = trio.Event()
        read(ahead, image, 0, 2)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ahead.stop)
        await trio.testing.wait_all_tasks_blocked()
        threads.gate.set()
    assert len(image.asked) == 4  # the piece that each lane had begun


def test_a_lane_that_does_not_exist_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image(1, Layout(CHUNK, 1, 0), [tmp_path]).read_ahead(0, CHUNK)
