"""Freeing: what may go, when, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import faults
from ckptfs.meta import generations, inodes, removals
from ckptfs.volume import reclaim
from tests.unit.volume.past import Past

WINDOW_S = 60.0


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    made = Past(tmp_path)
    yield made
    made.close()


def drop(past: Past, *, after_s: float = 3600, wanted_bytes: int | None = None, busy: set[int] | None = None) -> int:
    """As the volume does ``after_s`` seconds from now."""
    now_ns = past.now_ns + int(after_s * 1e9)
    window_s = WINDOW_S if wanted_bytes is None else 0.0
    return past.do(
        reclaim.drop_some, now_ns=now_ns, window_s=window_s, wanted_bytes=wanted_bytes, busy_inodes=busy or set()
    )


def lanes(past: Past) -> int:
    return sum(1 for stripe in past.stripes for _ in (stripe / "images").iterdir())


def test_p_undelete_nothing_goes_within_the_window_while_there_is_space(past: Past) -> None:
    past.save("f", b"content")
    past.seal_everything()
    past.unlink("f")
    assert drop(past, after_s=30) == 0
    assert drop(past, after_s=90) == 1


def test_an_unlinked_file_goes_with_its_inode_content_and_lanes(past: Past) -> None:
    past.save("f", b"content")
    past.seal_everything()
    ino = past.ino("f")
    past.unlink("f")
    drop(past)
    reclaim.finish(past.database, past.stripes)
    assert past.look(inodes.find, ino) is None
    assert past.look(generations.everything) == []
    assert past.look(generations.dropping_images) == []
    assert lanes(past) == 0


def test_what_was_removed_while_something_was_unsealed_is_held_however_long_and_however_full(past: Past) -> None:
    past.save("old", b"content")
    past.seal_everything()
    past.save("new", b"unsealed")
    past.unlink("old")
    assert drop(past) == drop(past, wanted_bytes=1 << 40) == 0
    past.seal_everything()
    assert drop(past) == 1


def test_a_replaced_content_is_held_while_its_successor_is_torn(past: Past) -> None:
    past.save("f", b"good")
    past.seal_everything()
    past.truncate_by_open("f")
    past.write("f", b"torn")
    past.seal("f", flushed=False)
    assert drop(past, wanted_bytes=1 << 40) == 0
    past.write("f", b"torn, and done")
    past.flush("f")
    past.seal("f")
    assert drop(past, wanted_bytes=1 << 40) == 1
    assert past.content("f") == b"torn, and done"


def test_a_file_that_somebody_still_has_open_waits_with_its_record(past: Past) -> None:
    past.save("f", b"content")
    past.seal_everything()
    ino = past.ino("f")
    past.unlink("f")
    assert drop(past, busy={ino}) == 0
    assert past.look(removals.mentions, ino)
    assert drop(past) == 1


def test_busy_files_do_not_keep_others_from_being_freed(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reclaim, "_AT_ONCE", 2)
    paths = [f"f{number}" for number in range(5)]
    for path in paths:
        past.save(path, b"content")
    past.seal_everything()
    inos = [past.ino(path) for path in paths]
    for path in paths:
        past.unlink(path)
    busy = set(inos[:3])
    assert drop(past, busy=busy) == 2
    assert [record.ino for record in past.look(removals.everything)] == [inos[2], inos[1], inos[0]]
    assert drop(past, busy=busy) == 0


def test_a_name_of_a_file_with_another_name_frees_nothing_and_is_passed_over_under_pressure(past: Past) -> None:
    past.save("f", b"content")
    past.link("f", "g")
    past.seal_everything()
    past.unlink("f")
    assert drop(past, wanted_bytes=1) == 0
    assert drop(past) == 1
    assert past.content("g") == b"content"


def test_under_pressure_the_oldest_go_first_and_no_more_than_needed(past: Past) -> None:
    for path in ("a", "b", "c"):
        past.save(path, b"0123456789")
    past.seal_everything()
    for path in ("b", "a", "c"):
        past.unlink(path)
    assert drop(past, wanted_bytes=11) == 2
    assert [record.name for record in past.look(removals.everything)] == [b"c"]


def test_with_the_last_name_go_the_contents_that_the_file_had_replaced_torn_or_not(past: Past) -> None:
    past.save("f", b"good")
    past.seal_everything()
    past.truncate_by_open("f")
    past.write("f", b"torn")
    past.seal("f", flushed=False)
    past.unlink("f")
    assert drop(past) == 2
    assert past.look(generations.everything) == []
    assert past.look(removals.everything) == []


def test_a_removed_directory_waits_for_what_was_removed_from_it(past: Past) -> None:
    past.mkdir("d")
    past.save("d/f", b"content")
    past.seal_everything()
    ino = past.ino("d/f")
    past.unlink("d/f")
    past.rmdir("d")
    assert drop(past, busy={ino}) == 0
    assert drop(past) == 2
    assert past.look(inodes.count) == 1


def test_a_content_in_quarantine_keeps_its_inode(past: Past) -> None:
    past.save("f", b"good")
    past.seal_everything()
    past.truncate_by_open("f")
    past.write("f", b"torn")
    past.die()
    past.recover(same_instance=True)
    ino = past.ino("f")
    past.unlink("f")
    assert drop(past) == 1
    [left] = past.look(generations.everything)
    assert past.content_of(left) == b"torn"
    assert past.look(inodes.find, ino) is not None


@pytest.mark.parametrize("point", ["reclaim.dropping", "reclaim.barrier", "reclaim.lanes-gone"])
def test_freeing_that_dies_half_way_is_ended_by_the_next_mount(past: Past, point: str) -> None:
    past.save("f", b"content")
    past.save("g", b"content")
    past.seal_everything()
    past.unlink("f")
    drop(past)
    faults.arm(f"{point}=EIO")
    try:
        with pytest.raises(OSError, match=point):
            reclaim.finish(past.database, past.stripes)
    finally:
        faults.arm("")
    past.die()
    past.recover(same_instance=True)
    assert past.look(generations.dropping_images) == []
    assert lanes(past) == 1
    assert past.content("g") == b"content"


def test_a_lane_is_only_unlinked_once_the_drop_is_on_disk(past: Past) -> None:
    past.save("f", b"content")
    past.seal_everything()
    past.unlink("f")
    past.barrier()
    drop(past)
    faults.arm("barrier.before=EIO")
    try:
        with pytest.raises(OSError, match=r"barrier\.before"):
            reclaim.finish(past.database, past.stripes)
    finally:
        faults.arm("")
    assert lanes(past) == 1


def test_allocated_bytes_counts_the_lanes_that_there_are(past: Past) -> None:
    past.save("f", bytes(20))
    [(image, stripes)] = [(row.image.id, row.image.stripes) for row in past.look(generations.with_images) if row.image]
    text = " ".join(map(str, stripes))
    assert reclaim.allocated_bytes((image, text), past.stripes) > 0
    assert reclaim.allocated_bytes((image + 1, text), past.stripes) == 0
