"""Seals and what races with them."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ckptfs.image.image import Image
from ckptfs.meta import generations, removals, runs
from ckptfs.meta.schema import ROOT_INO, State
from ckptfs.volume import seal as seal_module
from ckptfs.volume.attributes import AttributeChange
from ckptfs.volume.live import LiveFile
from ckptfs.volume.seal import Sealer
from tests.unit.volume.opened import (
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


def fail_sync_of(monkeypatch: pytest.MonkeyPatch, image_id: int | None = None) -> None:
    """Let the flush of one image fail, or of all."""
    original = Image.sync

    def sync(image: Image) -> None:
        if image_id in (None, image.image_id):
            raise OSError(errno.EIO, "the device lost it")
        original(image)

    monkeypatch.setattr(Image, "sync", sync)


async def seal_not_final(sealer: Sealer, files: list[LiveFile]) -> None:
    """As the background does."""
    await sealer.seal(files, final=False)


async def test_a_seal_flushes_the_lanes_before_it_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        ino = await save(volume, "f", b"weights")
        gate = Gate(monkeypatch, Image, "sync")
        sealing = Background(nursery, seal_not_final, volume.sealer, [live(volume, ino)])
        await gate.wait_reached()
        assert (await generation(volume, ino)).state is State.LANDING
        gate.open()
        await sealing.wait()
        row = await generation(volume, ino)
        assert (row.state, row.sealed_size, row.unsealed_since) == (State.SEALED, 7, None)
        assert row.image is not None
        assert row.image.lane_sizes == (7,)


async def test_a_write_during_a_seal_leaves_the_generation_landing_since_a_tick_before_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        file = await open_file(volume, "f")
        await file.write(0, b"seen by the seal")
        gate = Gate(monkeypatch, Image, "sync")
        sealing = Background(nursery, seal_not_final, volume.sealer, [live(volume, file.ino)])
        await gate.wait_reached()
        await file.write(16, b", and not")
        after = await volume.transact(generations.next_tick)
        gate.open()
        await sealing.wait()
        row = await generation(volume, file.ino)
        assert (row.state, row.sealed_size, row.flushed) == (State.LANDING, 16, False)
        assert row.unsealed_since is not None
        assert row.unsealed_since < after
        await close(file)


async def test_a_flush_during_a_seal_keeps_the_later_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        file = await open_file(volume, "f")
        await file.write(0, b"seen")
        gate = Gate(monkeypatch, Image, "sync")
        sealing = Background(nursery, seal_not_final, volume.sealer, [live(volume, file.ino)])
        await gate.wait_reached()
        await file.write(4, b"closed")
        await file.flush()
        gate.open()
        await sealing.wait()
        row = await generation(volume, file.ino)
        assert (row.state, row.size, row.sealed_size, row.flushed) == (State.LANDING, 10, 4, True)
        await file.release()


async def test_a_write_while_a_seal_commits_marks_the_generation_dirty_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        file = await open_file(volume, "f")
        await file.write(0, b"sealed")
        gate = Gate(monkeypatch, seal_module, "_commit_whole")
        sealing = Background(nursery, seal_not_final, volume.sealer, [live(volume, file.ino)])
        await gate.wait_reached()
        writing = Background(nursery, file.write, 0, b"DIRTY!")
        await wait_all_tasks_blocked()
        assert not writing.done
        gate.open()
        await sealing.wait()
        await writing.wait()
        row = await generation(volume, file.ino)
        assert (row.state, row.flushed, row.sealed_size) == (State.LANDING, False, 6)
        assert volume.landing.unsealed() == [live(volume, file.ino)]
        await close(file)


async def test_bytes_that_a_truncate_cut_during_a_seal_are_not_on_disk_for_certain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        file = await open_file(volume, "f")
        await file.write(0, b"first content")
        gate = Gate(monkeypatch, Image, "sync")
        sealing = Background(nursery, seal_not_final, volume.sealer, [live(volume, file.ino)])
        await gate.wait_reached()
        await volume.setattr(file.ino, AttributeChange(size=2))
        await file.write(2, b"cond content!")
        gate.open()
        await sealing.wait()
        assert (await generation(volume, file.ino)).sealed_size in (None, 0, 1, 2)
        await close(file)


async def test_p_fsync_file_an_fsync_waits_for_the_commit_of_a_seal_that_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        file = await open_file(volume, "f")
        await file.write(0, b"weights")
        await file.flush()
        gate = Gate(monkeypatch, seal_module, "_commit_whole")
        sealing = Background(nursery, seal_not_final, volume.sealer, [live(volume, file.ino)])
        await gate.wait_reached()
        syncing = Background(nursery, file.fsync, False)
        await wait_all_tasks_blocked()
        assert not syncing.done
        gate.open()
        await sealing.wait()
        await syncing.wait()
        assert (await generation(volume, file.ino)).state is State.SEALED
        assert not volume._database.needs_barrier()
        await file.release()


async def test_p_fsync_file_an_fsync_after_a_seal_that_failed_to_commit_seals_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        file = await open_file(volume, "f")
        await file.write(0, b"weights")
        with monkeypatch.context() as patched:

            def fail(*_args: object) -> None:
                raise OSError(errno.ENOSPC, "full")

            patched.setattr(seal_module, "_commit_whole", fail)
            with pytest.raises(OSError, match="full"):
                await file.fsync(False)
        assert (await generation(volume, file.ino)).state is State.LANDING
        await file.fsync(False)
        assert (await generation(volume, file.ino)).state is State.SEALED
        await file.release()


async def test_an_fsync_of_an_unchanged_file_flushes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        file = await open_file(volume, "f")
        await file.write(0, b"weights")
        await file.fsync(False)

        def fail(*_args: object) -> None:
            raise AssertionError

        monkeypatch.setattr(Image, "sync", fail)
        monkeypatch.setattr(type(volume._database), "barrier", fail)
        await file.fsync(False)
        monkeypatch.undo()
        await close(file)


async def test_a_flush_that_fails_is_an_oserror_sticks_to_its_file_and_leaves_the_others_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch, clean=False) as volume:
        good = await save(volume, "good", b"good")
        bad = await open_file(volume, "bad")
        await bad.write(0, b"bad")
        image = (await generation(volume, bad.ino)).image
        assert image is not None
        with monkeypatch.context() as patched:
            fail_sync_of(patched, image.id)
            with pytest.raises(OSError, match="Input/output error"):
                await volume.sealer.seal(volume.landing.unsealed(), final=False)
        assert (await generation(volume, good)).state is State.SEALED
        assert (await generation(volume, bad.ino)).state is State.LANDING
        with pytest.raises(OSError, match="Input/output error"):
            await bad.fsync(False)
        await bad.release()


async def test_the_background_lives_through_a_device_that_fails_to_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), clean=False) as volume:
        with monkeypatch.context() as patched:
            fail_sync_of(patched)
            ino = await save(volume, "bad", b"bad")
            await until(lambda: live(volume, ino).error is not None)
        ino = await save(volume, "good", b"good")
        await until(lambda: volume.landing.find(ino) is None)
        assert (await generation(volume, ino)).state is State.SEALED


async def test_what_is_closed_is_sealed_in_the_background_and_let_go(tmp_path: Path) -> None:
    async with opened(make(tmp_path)) as volume:
        ino = await save(volume, "f", b"weights")
        await until(lambda: volume.landing.find(ino) is None)
        row = await generation(volume, ino)
        assert (row.state, row.flushed) == (State.SEALED, True)


async def test_closed_files_that_an_fsync_of_their_directory_seals_are_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        ino = await save(volume, "f", b"weights")
        await volume.fsync_directory(ROOT_INO)
        assert (await generation(volume, ino)).state is State.SEALED
        assert volume.landing.find(ino) is None


async def test_many_files_are_flushed_with_their_filesystems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        inodes = [await save(volume, f"f{number}", b"weights") for number in range(20)]
        flushed: list[Path] = []
        monkeypatch.setattr(seal_module, "syncfs", flushed.append)
        await volume.seal_all()
        assert flushed == [stripe.path for stripe in volume.stripes]
        assert {(await generation(volume, ino)).state for ino in inodes} == {State.SEALED}


async def test_an_empty_file_that_is_open_is_not_sealed_but_its_fsync_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        file = await open_file(volume, "f")
        await file.fsync(False)
        row = await generation(volume, file.ino)
        assert (row.state, row.sealed_size) == (State.LANDING, 0)
        assert (row.acknowledged_parent, row.acknowledged_name) == (ROOT_INO, b"f")
        await close(file)
        await volume.seal_all()
        assert (await generation(volume, file.ino)).state is State.SEALED


# --- retired generations -----------------------------------------------------------------------------------------------


async def test_a_generation_replaced_before_it_was_sealed_is_sealed_too_and_holds_the_log_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume:
        ino = await save(volume, "f", b"old")
        old = (await generation(volume, ino)).id
        await save(volume, "f", b"new")
        await volume.sealer.seal(volume.landing.unsealed(), final=False)
        [held] = await volume.transact(
            lambda connection: removals.held(connection, generations.oldest_unsealed(connection))
        )
        assert held.generation == old
        await volume.sealer.seal_retired()
        row = await volume.transact(generations.the, old)
        assert (row.state, row.sealed_size) == (State.SEALED, 3)
        assert not await volume.transact(
            lambda connection: removals.held(connection, generations.oldest_unsealed(connection))
        )


async def test_two_that_seal_retired_generations_at_once_do_not_trip_over_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path), monkeypatch) as volume, trio.open_nursery() as nursery:
        for _ in range(3):
            await save(volume, "f", b"content")
        gate = Gate(monkeypatch, Image, "sync")
        first = Background(nursery, volume.sealer.seal_retired)
        await gate.wait_reached()
        second = Background(nursery, volume.sealer.seal_retired)
        await wait_all_tasks_blocked()
        gate.open()
        await first.wait()
        await second.wait()
        assert not volume.landing.retired


async def test_leaving_seals_everything_and_marks_the_run_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make(tmp_path)
    async with opened(directory, monkeypatch) as volume:
        await save(volume, "f", b"old")
        ino = await save(volume, "f", b"new")
        left_open = await open_file(volume, "g", os.O_WRONLY)
        await left_open.write(0, b"still open")
        await left_open.release()
    async with opened(directory, monkeypatch) as volume:
        assert await content(volume, "f") == b"new"
        rows = await volume.transact(generations.of_inode, ino)
        assert [row.state for row in rows] == [State.SEALED, State.SEALED]
        last = await volume.transact(runs.last)
        assert last is not None
        assert not last.clean


async def test_whatever_goes_wrong_in_the_background_the_volume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = Sealer.seal_retired

    async def fail_twice(sealer: Sealer) -> None:
        calls.append(1)
        if len(calls) <= 2:
            raise sqlite3.OperationalError("unable to open database file")
        await original(sealer)

    monkeypatch.setattr(Sealer, "seal_retired", fail_twice)
    monkeypatch.setattr(seal_module, "_RETRY_S", 0.0)
    async with opened(make(tmp_path)) as volume:
        for name in ("a", "b", "c"):
            await save(volume, name, b"shard")
            seen = len(calls)
            await until(lambda seen=seen: len(calls) > seen)
        assert await content(volume, "a") == b"shard"
