"""Races of the write path: every gate holds a blocking call at the moment that matters."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ckptfs.errors import DamagedData
from ckptfs.image.image import Image
from ckptfs.meta import removals
from ckptfs.meta.schema import ROOT_INO, State
from ckptfs.volume import live as live_module
from ckptfs.volume import namespace
from ckptfs.volume.attributes import AttributeChange, RenameMode
from ckptfs.volume.volume import Volume
from tests.unit.volume.opened import (
    CHUNK_BYTES,
    Background,
    Gate,
    close,
    content,
    generation,
    live,
    make,
    open_file,
    opened,
    save,
    until,
)


def fail_lane_writes(monkeypatch: pytest.MonkeyPatch, number: int = errno.EIO) -> None:
    def fail(_image: Image, _lane: int, _offset: int, _buffers: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Image, "write_span", fail)


# --- write and flush ---------------------------------------------------------------------------------------------------


async def test_a_write_is_answered_before_its_bytes_are_in_the_lane_and_is_read_back_only_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        gate = Gate(monkeypatch, Image, "write_span")
        file = await open_file(volume, "f")
        assert await file.write(0, b"shard") == 5
        assert file.read_nowait(0, 5) is None
        reading = Background(nursery, file.read, 0, 5)
        await gate.wait_reached()
        await wait_all_tasks_blocked()
        assert not reading.done
        gate.open()
        assert await reading.wait() == b"shard"
        await close(file)


async def test_the_dirty_mark_is_committed_before_a_byte_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        ino = await save(volume, "f", b"old")
        await volume.seal_all()
        file = await open_file(volume, "f")
        gate = Gate(monkeypatch, live_module, "_begin_landing")
        writing = Background(nursery, file.write, 0, b"new")
        await gate.wait_reached()
        await wait_all_tasks_blocked()
        assert not writing.done
        assert not live(volume, ino).buffered_bytes
        gate.open()
        await writing.wait()
        row = await generation(volume, ino)
        assert (row.state, row.flushed) == (State.LANDING, False)
        await close(file)


async def test_flush_waits_for_the_lanes_and_then_commits_the_mark_with_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        gate = Gate(monkeypatch, Image, "write_span")
        file = await open_file(volume, "f")
        await file.write(0, b"shard")
        flushing = Background(nursery, file.flush)
        await gate.wait_reached()
        await wait_all_tasks_blocked()
        assert not flushing.done
        assert not (await generation(volume, file.ino)).flushed
        gate.open()
        await flushing.wait()
        row = await generation(volume, file.ino)
        assert (row.flushed, row.size) == (True, 5)
        await file.release()


async def test_a_write_that_comes_while_a_flush_commits_takes_the_mark_back_before_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        file = await open_file(volume, "f")
        await file.write(0, b"one")
        gate = Gate(monkeypatch, live_module, "_commit_flush")
        flushing = Background(nursery, file.flush)
        await gate.wait_reached()
        writing = Background(nursery, file.write, 3, b"two")
        await wait_all_tasks_blocked()
        assert not writing.done
        gate.open()
        await flushing.wait()
        await writing.wait()
        assert not (await generation(volume, file.ino)).flushed
        await close(file)
        assert (await generation(volume, file.ino)).flushed


async def test_a_second_close_returns_only_when_the_mark_that_the_first_commits_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        file = await open_file(volume, "f")
        await file.write(0, b"one")
        gate = Gate(monkeypatch, live_module, "_commit_flush")
        first = Background(nursery, file.flush)
        await gate.wait_reached()
        second = Background(nursery, file.flush)
        await wait_all_tasks_blocked()
        assert not second.done
        gate.open()
        await first.wait()
        await second.wait()
        await file.release()


async def test_a_flush_that_cannot_be_committed_leaves_the_file_torn_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        file = await open_file(volume, "f")
        await file.write(0, b"one")
        with monkeypatch.context() as patched:

            def fail(*_args: object) -> None:
                raise OSError(errno.ENOSPC, "full")

            patched.setattr(live_module, "_commit_flush", fail)
            with pytest.raises(OSError, match="full"):
                await file.flush()
        await close(file)
        assert (await generation(volume, file.ino)).flushed


async def test_p_daemon_killed_a_file_sealed_while_it_was_open_is_finished_by_its_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        file = await open_file(volume, "f")
        await file.write(0, b"a long save with a pause")
        await volume.sealer.seal([live(volume, file.ino)], final=False)
        row = await generation(volume, file.ino)
        assert (row.state, row.flushed) == (State.SEALED, False)
        await close(file)
        assert (await generation(volume, file.ino)).flushed


async def test_p_daemon_killed_an_overwrite_sealed_while_it_was_open_is_final_once_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        await save(volume, "f", b"old")
        await volume.seal_all()
        file = await open_file(volume, "f", os.O_WRONLY | os.O_TRUNC)
        await file.write(0, b"new")
        await volume.sealer.seal([live(volume, file.ino)], final=False)
        await close(file)
        [record] = await volume.transact(removals.of_inode, file.ino)
        assert record.acknowledged


async def test_overlapping_writes_land_in_the_order_in_which_they_were_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        gate = Gate(monkeypatch, Image, "write_span")
        file = await open_file(volume, "f")
        await file.write(0, b"1" * 9)
        live(volume, file.ino).start_lanes()
        await gate.wait_reached()
        await file.write(3, b"2" * 6)
        await file.write(1, b"3" * 4)
        await file.write(4, b"4" * 2)
        gate.open()
        assert bytes(await file.read(0, 99)) == b"133344222"
        await close(file)


async def test_a_slow_stripe_does_not_hold_what_goes_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path, width=2), monkeypatch) as volume:
        gate = Gate(monkeypatch, Image, "write_span", only=lambda _image, lane, *_: lane == 0)
        file = await open_file(volume, "f")
        await file.write(0, b"0" * 2 * CHUNK_BYTES)
        live(volume, file.ino).start_lanes()
        await gate.wait_reached()
        image = live(volume, file.ino).image
        assert image is not None
        await until(lambda: live(volume, file.ino).buffered_bytes == CHUNK_BYTES)
        assert image.lane_sizes()[1] == CHUNK_BYTES
        gate.open()
        await close(file)


# --- truncate ----------------------------------------------------------------------------------------------------------


async def test_a_truncate_waits_for_bytes_on_their_way_and_then_cuts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        gate = Gate(monkeypatch, Image, "write_span")
        file = await open_file(volume, "f")
        await file.write(0, b"shard")
        cutting = Background(nursery, volume.setattr, file.ino, AttributeChange(size=2))
        await gate.wait_reached()
        await wait_all_tasks_blocked()
        assert not cutting.done
        gate.open()
        assert (await cutting.wait()).size == 2
        await volume.setattr(file.ino, AttributeChange(size=5))
        assert bytes(await file.read(0, 9)) == b"sh\0\0\0"
        await close(file)


@pytest.mark.parametrize("held", ["the commit", "the lanes"])
async def test_a_write_that_comes_while_a_truncate_runs_is_whole_afterwards(
    held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        file = await open_file(volume, "f")
        await file.write(0, b"x" * 100)
        gate = Gate(monkeypatch, *((live_module, "_truncate") if held == "the commit" else (Image, "truncate")))
        cutting = Background(nursery, volume.setattr, file.ino, AttributeChange(size=10))
        await gate.wait_reached()
        writing = Background(nursery, file.write, 50, b"late")
        await wait_all_tasks_blocked()
        gate.open()
        await cutting.wait()
        await writing.wait()
        await file.flush()
        assert bytes(await file.read(0, 999)) == b"x" * 10 + bytes(40) + b"late"
        row = await generation(volume, file.ino)
        assert (row.size, row.flushed) == (54, True)
        await file.release()


async def test_a_failed_truncate_leaves_the_size_as_it_was_and_the_file_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        file = await open_file(volume, "f")
        await file.write(0, b"shard")
        await file.flush()
        with monkeypatch.context() as patched:

            def fail(*_args: object) -> None:
                raise OSError(errno.ENOSPC, "full")

            patched.setattr(live_module, "_truncate", fail)
            with pytest.raises(OSError, match="full"):
                await volume.setattr(file.ino, AttributeChange(size=2))
        assert bytes(await file.read(0, 9)) == b"shard"
        await close(file)
        row = await generation(volume, file.ino)
        assert (row.size, row.flushed) == (5, True)


async def test_after_a_failed_truncate_of_a_sealed_file_a_write_still_marks_it_dirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        file = await open_file(volume, "f")
        await file.write(0, b"shard")
        await file.fsync(False)
        with monkeypatch.context() as patched:

            def fail(*_args: object) -> None:
                raise OSError(errno.ENOSPC, "full")

            patched.setattr(live_module, "_truncate", fail)
            with pytest.raises(OSError, match="full"):
                await volume.setattr(file.ino, AttributeChange(size=2))
        await file.write(0, b"other")
        row = await generation(volume, file.ino)
        assert (row.state, row.flushed) == (State.LANDING, False)
        await close(file)


async def test_a_sealed_file_whose_write_found_no_space_is_sealed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        file = await open_file(volume, "f")
        await file.write(0, b"shard")
        await file.fsync(False)
        with monkeypatch.context() as patched:

            async def full(*_args: object) -> None:
                await trio.lowlevel.checkpoint()
                raise OSError(errno.ENOSPC, "full")

            patched.setattr(volume.space, "reserve", full)
            with pytest.raises(OSError, match="full"):
                await file.write(1 << 30, b"far away")
        assert bytes(await file.read(0, 99)) == b"shard"
        await close(file)
        await volume.seal_all()
        row = await generation(volume, file.ino)
        assert (row.state, row.size, row.flushed) == (State.SEALED, 5, True)


# --- O_TRUNC -----------------------------------------------------------------------------------------------------------


async def test_o_trunc_by_the_only_opener_starts_a_generation_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        ino = await save(volume, "f", b"old")
        before = await generation(volume, ino)
        await save(volume, "f", b"new")
        assert (await generation(volume, ino)).id != before.id
        [record] = await volume.transact(removals.of_inode, ino)
        assert record.generation == before.id
        assert await content(volume, "f") == b"new"


async def test_o_trunc_of_a_file_that_somebody_has_open_truncates_it_for_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        ino = await save(volume, "f", b"old content")
        before = await generation(volume, ino)
        reader = await open_file(volume, "f", os.O_RDONLY)
        await save(volume, "f", b"new")
        assert (await generation(volume, ino)).id == before.id
        assert bytes(await reader.read(0, 99)) == b"new"
        await reader.release()


async def test_bytes_of_a_replaced_generation_that_land_late_do_not_reach_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        file = await open_file(volume, "f")
        await file.write(0, b"old" * 100)
        await close(file)
        replacing = Gate(monkeypatch, namespace, "replace_generation")
        landing = Gate(monkeypatch, Image, "write_span")
        opening = Background(nursery, open_file, volume, "f", os.O_WRONLY | os.O_TRUNC)
        await replacing.wait_reached()
        other = await volume.open(file.ino, os.O_WRONLY)  # the file is live: no metadata is asked
        late = Background(nursery, other.write, 0, b"LATE" * 100)
        await wait_all_tasks_blocked()
        replacing.open()
        anew = await opening.wait()
        await anew.write(0, b"new")
        landing.open()
        await late.wait()
        await close(other)
        await close(anew)
        # The late write was either before the O_TRUNC, and is gone, or after it, and is whole.
        assert await content(volume, "f") in (b"new", b"newELATE" + b"LATE" * 98, b"LATE" * 100)
        used = volume.landing.buffer.statistics().used_bytes
        assert used == 0
        assert live(volume, anew.ino).buffered_bytes == 0


# --- errors ------------------------------------------------------------------------------------------------------------


async def test_an_error_of_a_lane_sticks_to_the_generation_until_o_trunc_starts_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        file = await open_file(volume, "f")
        with monkeypatch.context() as patched:
            fail_lane_writes(patched)
            await file.write(0, b"lost")
            with pytest.raises(OSError, match="Input/output error") as failed:
                await file.flush()
            assert failed.value.errno == errno.EIO
        for again in (file.write(0, b"x"), file.flush(), file.fsync(False)):
            with pytest.raises(OSError, match="Input/output error") as failed:
                await again
            assert failed.value.errno == errno.EIO
        with pytest.raises(OSError, match="Input/output error") as failed:
            await volume.rename(ROOT_INO, b"f", ROOT_INO, b"g", RenameMode.REPLACE)
        assert failed.value.errno == errno.EIO
        await file.release()
        await save(volume, "f", b"whole")
        assert await content(volume, "f") == b"whole"
        assert (await generation(volume, file.ino)).flushed


async def test_accepted_bytes_that_were_lost_are_an_error_and_not_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch, clean=False) as volume:
        file = await open_file(volume, "f")
        with monkeypatch.context() as patched:
            fail_lane_writes(patched)
            await file.write(0, b"lost")
            with pytest.raises(OSError, match="Input/output error"):
                await file.flush()
        assert file.read_nowait(0, 4) is None
        with pytest.raises(DamagedData, match="Input/output error"):
            await file.read(0, 4)
        await file.release()


async def test_buffered_bytes_of_a_failed_lane_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(make(tmp_path), monkeypatch, clean=False) as volume:
        fail_lane_writes(monkeypatch)
        file = await open_file(volume, "f")
        await file.write(0, b"lost")
        with pytest.raises(OSError, match="Input/output error"):
            await file.flush()
        assert volume.landing.buffer.statistics().used_bytes == 0
        await file.release()


# --- back-pressure -----------------------------------------------------------------------------------------------------


async def test_writers_wait_for_the_buffer_budget_never_exceed_it_and_proceed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        buffer = volume.landing.buffer
        buffer.limit_bytes = 1000
        most = 0
        gate = Gate(monkeypatch, Image, "write_span")
        files = [await open_file(volume, f"f{number}") for number in range(3)]

        async def write_much(index: int) -> None:
            nonlocal most
            for piece in range(10):
                await files[index].write(piece * 300, bytes([index + 1]) * 300)
                most = max(most, buffer.statistics().used_bytes)

        writers = [Background(nursery, write_much, index) for index in range(3)]
        await until(lambda: buffer.statistics().writers_waiting == 3)
        assert 600 < buffer.statistics().used_bytes <= 1000
        gate.open()
        for writer in writers:
            await writer.wait()
        for index, file in enumerate(files):
            assert bytes(await file.read(0, 9999)) == bytes([index + 1]) * 3000
            await close(file)
        assert most <= 1000
        assert buffer.statistics().used_bytes == 0


async def test_a_write_larger_than_the_whole_budget_passes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        volume.landing.buffer.limit_bytes = 10
        await save(volume, "f", b"x" * 100)
        assert await content(volume, "f") == b"x" * 100


# --- damage ------------------------------------------------------------------------------------------------------------


async def lose_the_end_of_a_lane(volume: Volume, ino: int) -> Path:
    image = (await generation(volume, ino)).image
    assert image is not None
    [lane] = [
        path
        for path in volume.stripes[image.stripes[0]].path.glob("images/*")
        if path.name.startswith(f"{image.id:016x}")
    ]
    os.truncate(lane, 3)
    return lane


async def test_a_lane_that_is_shorter_than_it_was_sealed_is_eio_and_not_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make(tmp_path)
    async with opened(directory, monkeypatch) as volume:
        ino = await save(volume, "f", b"weights")
    async with opened(directory, monkeypatch) as volume:
        await lose_the_end_of_a_lane(volume, ino)
        file = await open_file(volume, "f", os.O_RDONLY)
        assert file.read_nowait(0, 7) is None
        with pytest.raises(DamagedData, match="run ckptfs fsck"):
            await file.read(0, 7)
        await file.release()


async def test_a_damaged_file_is_not_changed_in_place_which_would_hide_the_damage_and_is_whole_when_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make(tmp_path)
    async with opened(directory, monkeypatch) as volume:
        ino = await save(volume, "f", b"weights")
    async with opened(directory, monkeypatch) as volume:
        await lose_the_end_of_a_lane(volume, ino)
        file = await open_file(volume, "f", os.O_WRONLY)
        with pytest.raises(DamagedData):
            await file.write(7, b"more")
        with pytest.raises(DamagedData):
            await volume.setattr(ino, AttributeChange(size=9))
        await close(file)
    async with opened(directory, monkeypatch) as volume:
        with pytest.raises(DamagedData):
            await content(volume, "f")
        await save(volume, "f", b"anew")
        assert await content(volume, "f") == b"anew"
