"""Space pressure: what is freed, in which order, and what is left to whom. The stripes' size is made up."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from ckptfs.meta import generations, removals
from ckptfs.meta.schema import ROOT_INO, State
from ckptfs.volume.stripes import Stripe, StripeSpace
from ckptfs.volume.volume import Volume
from tests.unit.volume.opened import close, content, generation, make, open_file, opened, save

MIB = 1 << 20


def limit_stripes(monkeypatch: pytest.MonkeyPatch, total_bytes: int) -> None:
    """Let each stripe seem to have so much space, of which its lanes take what they really take."""

    def space(stripe: Stripe, *, from_reserve_bytes: int = 0) -> StripeSpace:
        used = sum(lane.stat().st_blocks * 512 for lane in (stripe.path / "images").iterdir())
        available = total_bytes - used - stripe.reserve_bytes + from_reserve_bytes
        return StripeSpace(total=total_bytes, available=max(0, available))

    monkeypatch.setattr(Stripe, "space", space)


async def records(volume: Volume) -> list[tuple[bytes, int | None]]:
    """What the log keeps, oldest first: name and generation."""
    rows = await volume.transact(removals.free_to_go, None, 1 << 62, 1000)
    return [(row.name, row.generation) for row in rows]


async def test_a_write_that_does_not_fit_frees_what_the_log_keeps_oldest_first_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckptfs.volume.space._RELIEF_BYTES", 0)
    async with opened(make(tmp_path, stripes=1), monkeypatch) as volume:
        for name, size in (("first", 2 * MIB), ("second", MIB), ("third", MIB)):
            await save(volume, name, bytes(size))
            await volume.unlink(ROOT_INO, name.encode())
        await volume.seal_all()
        assert [name for name, _ in await records(volume)] == [b"first", b"second", b"third"]
        limit_stripes(monkeypatch, 5 * MIB)
        await save(volume, "new", b"n" * (MIB + 300_000))
        left = [name for name, _ in await records(volume)]
        assert left == [b"second", b"third"]
        assert await content(volume, "new") == b"n" * (MIB + 300_000)


async def test_what_is_held_is_sealed_first_and_then_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(make(tmp_path, stripes=1), monkeypatch) as volume:
        limit_stripes(monkeypatch, 3 * MIB)
        ino = await save(volume, "latest", bytes(MIB))
        for step in range(6):
            assert await save(volume, "latest", bytes([step + 1]) * MIB) == ino
        assert await content(volume, "latest") == bytes([6]) * MIB
        assert (await generation(volume, ino)).image is not None
        await volume.seal_all()
        assert await volume.transact(generations.dropping_images) == []


async def test_files_removed_right_after_they_were_saved_make_room_though_they_were_never_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path, stripes=1), monkeypatch) as volume:
        limit_stripes(monkeypatch, 3 * MIB)
        for step in range(6):
            name = f"step{step}"
            await save(volume, name, bytes([step + 1]) * MIB)
            assert await content(volume, name) == bytes([step + 1]) * MIB
            await volume.unlink(ROOT_INO, name.encode())


async def test_without_anything_to_free_the_write_that_does_not_fit_is_enospc_and_earlier_bytes_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path, stripes=1), monkeypatch) as volume:
        limit_stripes(monkeypatch, 3 * MIB)
        file = await open_file(volume, "f")
        await file.write(0, b"1" * MIB)
        with pytest.raises(OSError, match="left above their reserve") as failed:
            await file.write(MIB, b"2" * 4 * MIB)
        assert failed.value.errno == errno.ENOSPC
        await file.write(MIB, b"3" * 1000)
        assert bytes(await file.read(0, 9 * MIB)) == b"1" * MIB + b"3" * 1000
        await close(file)
        await volume.unlink(ROOT_INO, b"f")


async def test_what_is_open_is_not_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(make(tmp_path, stripes=1), monkeypatch) as volume:
        await save(volume, "removed", b"r" * MIB)
        reader = await open_file(volume, "removed", os.O_RDONLY)
        await volume.unlink(ROOT_INO, b"removed")
        limit_stripes(monkeypatch, 2 * MIB)
        file = await open_file(volume, "f")
        with pytest.raises(OSError, match="left above"):
            await file.write(0, bytes(2 * MIB))
        assert bytes(await reader.read(0, MIB)) == b"r" * MIB
        await reader.release()
        await file.write(0, bytes(MIB + 500_000))
        await close(file)


async def test_large_files_stop_at_the_reserve_and_small_ones_use_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve = 256 << 10
    async with opened(make(tmp_path, stripes=1, reserve_bytes=reserve), monkeypatch) as volume:
        limit_stripes(monkeypatch, 2 * MIB)
        large = await open_file(volume, "large")
        with pytest.raises(OSError, match="above their reserve"):
            await large.write(0, bytes(2 * MIB - reserve + 4096))
        await large.write(0, bytes(2 * MIB - reserve))
        for number in range(reserve // 2 // (16 << 10)):
            await save(volume, f"small{number}", bytes(16 << 10))
        one_more = await open_file(volume, "one more")
        with pytest.raises(OSError, match="above their reserve"):
            await one_more.write(0, bytes(16 << 10))
        await close(one_more)
        await close(large)


async def test_half_of_the_reserve_is_left_alone_also_when_something_else_took_part_of_it(tmp_path: Path) -> None:
    stripe = Stripe(0, tmp_path, reserve_bytes=1 << 60)
    assert stripe.space().available <= 0
    async with opened(make(tmp_path / "v", stripes=1)) as volume:
        assert volume.space._room(stripe, small=True) <= 0


async def test_names_can_be_changed_on_a_full_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(make(tmp_path, stripes=1), monkeypatch) as volume:
        await save(volume, "f", b"x" * MIB)
        limit_stripes(monkeypatch, 0)
        await volume.link((await volume.lookup(ROOT_INO, b"f")).ino, ROOT_INO, b"g")
        await volume.unlink(ROOT_INO, b"f")
        assert await content(volume, "g") == b"x" * MIB


async def test_what_only_the_log_keeps_counts_as_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(make(tmp_path, stripes=1), monkeypatch) as volume:
        await save(volume, "f", b"x" * MIB)
        await volume.seal_all()
        limit_stripes(monkeypatch, 8 * MIB)
        before = await volume.statfs()
        await volume.unlink(ROOT_INO, b"f")
        after = await volume.statfs()
        assert after.total_bytes == before.total_bytes == 8 * MIB
        assert after.free_bytes - before.free_bytes >= MIB


async def test_records_go_when_their_window_ends_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path, stripes=1), monkeypatch) as volume:
        ino = await save(volume, "f", b"x" * MIB)
        await volume.unlink(ROOT_INO, b"f")
        await volume.seal_all()
        now_ns = time.time_ns()
        assert await volume.space._reclaim(now_ns, 3600.0, None) == 0
        assert await volume.space._reclaim(now_ns + 3601 * 10**9, 3600.0, None) == 1
        assert await volume.transact(generations.of_inode, ino) == []
        assert not list((volume.stripes[0].path / "images").iterdir())


async def test_an_unsealed_generation_holds_what_was_removed_after_it_whatever_the_window_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make(tmp_path, stripes=1), monkeypatch) as volume:
        await save(volume, "step400", b"x" * MIB)
        await volume.seal_all()
        ino = await save(volume, "step500", b"y" * MIB)
        await volume.unlink(ROOT_INO, b"step400")
        assert (await generation(volume, ino)).state is State.LANDING
        assert await volume.space._reclaim(time.time_ns() + 10**18, 0.0, None) == 0
        await volume.seal_all()
        assert await volume.space._reclaim(time.time_ns() + 10**18, 0.0, None) == 1
