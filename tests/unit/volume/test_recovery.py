"""Both recovery tables of docs/crash-consistency.md, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import faults
from ckptfs.meta import generations, removals
from ckptfs.meta.schema import State
from ckptfs.volume.attributes import RenameMode
from tests.unit.volume.past import CHUNK_BYTES, Past, dump

OLD = b"the old checkpoint, whole"
NEW = b"a new checkpoint, some of it written"


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    made = Past(tmp_path)
    yield made
    made.close()


def saved(past: Past, path: str, data: bytes = OLD) -> None:
    past.save(path, data)
    past.fsync(path)
    past.fsync_directory(path.rpartition("/")[0])


def overwriting(past: Past, path: str, data: bytes = NEW) -> None:
    """O_TRUNC and writes, and no close."""
    past.truncate_by_open(path)
    past.write(path, data)


# --- the daemon was killed ---------------------------------------------------------------------------------------------


def test_p_daemon_killed_a_closed_file_stands_and_waits_for_its_seal(past: Past) -> None:
    past.save("f", OLD)
    past.die()
    report = past.recover(same_instance=True)
    assert past.content("f") == OLD
    assert past.generation("f").state is State.LANDING
    assert not report.quarantined
    assert not report.torn


def test_p_daemon_killed_a_torn_overwrite_yields_to_its_predecessor(past: Past) -> None:
    saved(past, "f")
    overwriting(past, "f")
    past.die()
    report = past.recover(same_instance=True)
    assert past.content("f") == OLD
    assert report.taken_back == report.quarantined == (b"f",)
    assert past.look(removals.everything) == []
    [row] = past.look(removals.quarantined)
    assert past.content_of(past.look(generations.the, row.generation)) == NEW


def test_p_daemon_killed_a_closed_overwrite_that_was_not_sealed_is_taken_back_too(past: Past) -> None:
    past.save("f", OLD)
    overwriting(past, "f")
    past.die()
    past.recover(same_instance=True)
    assert past.content("f") == OLD
    assert past.generation("f").state is State.LANDING


def test_p_daemon_killed_an_overwrite_that_was_opened_and_never_written_leaves_no_trace(past: Past) -> None:
    saved(past, "f")
    past.truncate_by_open("f")
    past.die()
    past.recover(same_instance=True)
    assert past.content("f") == OLD
    assert past.look(removals.quarantined) == []
    assert past.look(removals.everything) == []


def test_p_daemon_killed_torn_overwrites_in_a_row_yield_to_the_last_finished_content(past: Past) -> None:
    saved(past, "f")
    overwriting(past, "f", b"torn one")
    overwriting(past, "f", b"torn two")
    past.die()
    past.recover(same_instance=True)
    assert past.content("f") == OLD
    assert len(past.look(removals.quarantined)) == 2


def test_p_daemon_killed_a_torn_new_file_serves_its_prefix(past: Past) -> None:
    past.create("f")
    past.write("f", NEW)
    past.die()
    report = past.recover(same_instance=True)
    assert past.content("f") == NEW
    assert not past.generation("f").flushed
    assert report.torn == (b"f",)


def test_p_daemon_killed_bytes_of_a_lane_that_was_ahead_never_show_in_a_file_made_longer(past: Past) -> None:
    past.create("f")
    past.write("f", b"chunk 0 chunk 1 ")
    past.write("f", b"chunk 3 ", 3 * CHUNK_BYTES)
    past.die()
    past.recover(same_instance=True)
    assert past.content("f") == b"chunk 0 chunk 1 "
    past.do(generations.set_size, past.generation("f").id, 4 * CHUNK_BYTES)
    assert past.content("f") == b"chunk 0 chunk 1 " + bytes(2 * CHUNK_BYTES)


def test_p_daemon_killed_a_finished_overwrite_edited_in_place_keeps_its_edits(past: Past) -> None:
    saved(past, "f", b"of no interest any more")
    past.save("f", OLD)
    past.seal("f")
    past.write("f", b"THE", 0)
    past.die()
    past.recover(same_instance=True)
    assert past.content("f") == b"THE" + OLD[3:]


def test_p_daemon_killed_removals_and_renames_stand(past: Past) -> None:
    saved(past, "gone")
    saved(past, "target")
    past.save("tmp", NEW)
    past.unlink("gone")
    past.rename("tmp", "target")
    past.die()
    past.recover(same_instance=True)
    assert past.all_paths() == ["target"]
    assert past.content("target") == NEW


# --- the power was lost -------------------------------------------------------------------------------------------------


def test_p_power_lost_an_overwrite_never_sealed_yields_to_its_predecessor(past: Past) -> None:
    saved(past, "latest.pt")
    past.save("latest.pt", NEW)
    past.lose_power()
    report = past.recover(same_instance=False)
    assert past.content("latest.pt") == OLD
    assert past.generation("latest.pt").state is State.SEALED
    assert report.taken_back == (b"latest.pt",)


def test_p_power_lost_a_new_file_never_sealed_loses_its_names_and_is_kept_in_quarantine(past: Past) -> None:
    past.save("f", NEW)
    past.link("f", "g")
    past.lose_power(keep_lane=lambda _: True)
    past.recover(same_instance=False)
    assert past.all_paths() == []
    [row] = past.look(removals.quarantined)
    assert (row.parent, row.name) == (1, b"f")
    assert past.content_of(past.look(generations.the, row.generation)) == NEW


def test_p_power_lost_a_file_that_fsync_found_empty_comes_back_empty_where_it_was(past: Past) -> None:
    saved(past, ".metadata")
    past.create(".metadata.tmp")
    past.fsync(".metadata.tmp")
    past.write(".metadata.tmp", NEW)
    past.flush(".metadata.tmp")
    past.unlink(".metadata")
    past.rename(".metadata.tmp", ".metadata")
    past.lose_power()
    report = past.recover(same_instance=False)
    assert past.content(".metadata") == OLD
    assert past.content(".metadata.tmp") == b""
    assert report.emptied == (b".metadata.tmp",)


def test_p_fsync_file_a_name_fsynced_empty_is_not_given_back_to_what_had_it_before(past: Past) -> None:
    saved(past, "f")
    past.save("shard", b"unsealed")
    past.unlink("f")
    past.create("f")
    past.fsync("f")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("f") == b""


def test_p_fsync_dir_a_removed_file_that_was_sealed_empty_stays_removed(past: Past) -> None:
    past.create("f")
    past.fsync("f")
    past.write("f", NEW)
    past.unlink("f")
    past.fsync_directory("")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.all_paths() == []


def test_p_power_lost_an_overwrite_that_a_timed_seal_caught_half_way_yields(past: Past) -> None:
    saved(past, "f")
    overwriting(past, "f", b"half of")
    past.seal("f", flushed=False)
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("f") == OLD


@pytest.mark.parametrize("overwritten", [True, False])
def test_p_power_lost_a_file_that_a_seal_caught_half_way_shows_no_bytes_that_came_after(
    past: Past, *, overwritten: bool
) -> None:
    if overwritten:
        saved(past, "f")
        past.truncate_by_open("f")
    else:
        past.create("f")
    past.write("f", NEW[:8])
    row = past.generation("f")
    past.seal("f", flushed=False)
    past.do(generations.set_lane_sizes, row.id, [])
    past.do(generations.set_sealed, row.id, size=8, sealed_size=8, unsealed_since=row.unsealed_since, flushed=False)
    past.barrier()
    past.write("f", NEW[8:], 8)
    past.flush("f")
    past.lose_power(keep_lane=lambda _: True)
    past.recover(same_instance=False)
    assert past.content("f") == (OLD if overwritten else NEW[:8])
    assert past.generation("f").flushed is overwritten


@pytest.mark.parametrize("kept", [True, False])
def test_p_edit_in_place_a_sealed_file_stays_with_what_the_device_kept(past: Past, *, kept: bool) -> None:
    saved(past, "db")
    past.write("db", b"THE", 0)
    past.write("db", b" and more", len(OLD))
    past.flush("db")
    past.lose_power(keep_lane=lambda _: kept)
    past.recover(same_instance=False)
    assert past.content("db") == (b"THE" + OLD[3:] + b" and more" if kept else OLD)


def test_p_edit_in_place_a_finished_overwrite_never_goes_back_to_what_it_replaced(past: Past) -> None:
    saved(past, "db", b"replaced long ago")
    past.save("db", OLD)
    past.fsync("db")
    past.write("db", b"THE", 0)
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("db") == OLD


def test_p_fsync_file_half_an_overwrite_that_fsync_covered_stays(past: Past) -> None:
    saved(past, "f")
    overwriting(past, "f", b"half, and fsynced")
    past.fsync("f")
    past.write("f", b", and more", 17)
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("f") == b"half, and fsynced"


def test_bytes_beyond_the_size_that_survived_are_cut_so_that_a_longer_file_shows_zeros(past: Past) -> None:
    saved(past, "f")
    past.write("f", b"never flushed", len(OLD))
    past.lose_power(keep_lane=lambda _: True)
    past.recover(same_instance=False)
    row = past.generation("f")
    assert row.state is State.SEALED
    assert row.size == len(OLD)
    past.do(generations.set_size, row.id, len(OLD) + 13)
    assert past.content("f") == OLD + bytes(13)


def test_p_power_lost_step_400_comes_back_when_step_500_was_never_on_disk(past: Past) -> None:
    past.mkdir("step-400")
    past.mkdir("step-400/optimizer")
    saved(past, "step-400/a")
    saved(past, "step-400/optimizer/b")
    past.mkdir("step-500")
    past.save("step-500/a", NEW)
    for path in ("step-400/optimizer/b", "step-400/a"):
        past.unlink(path)
    past.rmdir("step-400/optimizer")
    past.rmdir("step-400")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("step-400/a") == past.content("step-400/optimizer/b") == OLD
    assert past.content("step-500/a") is None
    root, step = past.inode(""), past.inode("step-400")
    assert root is not None
    assert step is not None
    assert (root.nlink, step.nlink) == (4, 3)
    assert past.look(removals.everything) == []


def test_p_rename_atomic_an_unsealed_winner_gives_the_name_back_to_the_old_file(past: Past) -> None:
    saved(past, "latest.pt")
    past.save("tmp", NEW)
    past.rename("tmp", "latest.pt")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.all_paths() == ["latest.pt"]
    assert past.content("latest.pt") == OLD


def test_a_sealed_winner_goes_back_to_where_it_came_from(past: Past) -> None:
    saved(past, "latest.pt")
    saved(past, "tmp", NEW)
    past.save("other", b"unsealed, so that the rename is held")
    past.rename("tmp", "latest.pt")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("latest.pt") == OLD
    assert past.content("tmp") == NEW


def test_a_rename_is_not_undone_once_the_place_it_came_from_is_taken(past: Past) -> None:
    saved(past, "latest.pt")
    saved(past, "tmp", NEW)
    past.save("other", b"unsealed")
    past.rename("tmp", "latest.pt")
    past.save("tmp", b"the next")
    past.fsync("tmp")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("latest.pt") == NEW
    assert past.content("tmp") == b"the next"
    assert [record.name for record in past.look(removals.everything)] == [b"latest.pt"]


def test_p_fsync_file_a_rename_that_an_fsync_acknowledged_stands(past: Past) -> None:
    saved(past, "latest.pt")
    past.save("other", b"unsealed")
    past.save("tmp", NEW)
    past.rename("tmp", "latest.pt")
    past.fsync("latest.pt")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("latest.pt") == NEW


def test_p_fsync_dir_removals_that_an_fsync_acknowledged_stand(past: Past) -> None:
    past.mkdir("d")
    saved(past, "d/f")
    past.save("other", b"unsealed")
    past.unlink("d/f")
    past.fsync_directory("d")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("d/f") is None


@pytest.mark.parametrize("acknowledged", ["", "a", "b"])
def test_an_exchange_is_undone_unless_an_fsync_acknowledged_a_name_of_it(past: Past, acknowledged: str) -> None:
    saved(past, "a", b"A")
    past.mkdir("d")
    past.mkdir("b")
    past.save("other", b"unsealed")
    past.rename("a", "b", RenameMode.EXCHANGE)
    if acknowledged == "b":
        past.fsync("b")
    elif acknowledged:
        past.fsync_directory("")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("b" if acknowledged else "a") == b"A"
    root = past.inode("")
    assert root is not None
    assert root.nlink == 4


@pytest.mark.parametrize("path", ["a", "b"])
def test_p_fsync_file_either_file_of_an_exchange_keeps_the_name_that_fsync_found(past: Past, path: str) -> None:
    saved(past, "a", b"A")
    saved(past, "b", b"B")
    past.save("other", b"unsealed")
    past.rename("a", "b", RenameMode.EXCHANGE)
    past.seal(path)
    past.fsync(path)
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("a") == b"B"
    assert past.content("b") == b"A"


def test_a_replaced_symbolic_link_points_at_the_old_step_again(past: Past) -> None:
    past.symlink("latest", b"step-400")
    past.fsync_directory("")
    past.save("shard", b"unsealed")
    past.symlink("latest.tmp", b"step-500")
    past.rename("latest.tmp", "latest")
    past.lose_power()
    past.recover(same_instance=False)
    row = past.inode("latest")
    assert row is not None
    assert row.target == b"step-400"


def test_an_old_content_goes_back_to_its_old_name_and_frees_the_new_one(past: Past) -> None:
    past.save("tmp", b"left over")
    past.save("latest", b"last good")
    past.seal_everything()
    past.truncate_by_open("tmp")
    past.write("tmp", NEW)
    past.flush("tmp")
    past.unlink("latest")
    past.rename("tmp", "latest")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("latest") == b"last good"
    assert past.content("tmp") == b"left over"


def test_p_fsync_file_a_file_sealed_empty_and_overwritten_twice_comes_back_empty(past: Past) -> None:
    past.create("f")
    past.seal("f")
    past.barrier()
    past.write("f", OLD)
    past.flush("f")
    past.truncate_by_open("f")
    past.write("f", NEW)
    past.flush("f")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.content("f") == b""


def test_a_symbolic_link_removed_and_made_anew_points_at_the_old_step_again(past: Past) -> None:
    past.symlink("latest", b"step-400")
    past.fsync_directory("")
    past.save("shard", b"unsealed")
    for step in (b"step-500", b"step-600"):
        past.unlink("latest")
        past.symlink("latest", step)
    past.lose_power()
    past.recover(same_instance=False)
    row = past.inode("latest")
    assert row is not None
    assert row.target == b"step-400"
    assert past.recover(same_instance=False).undone == ()


def test_a_directory_is_never_moved_into_itself_to_undo_a_rename(past: Past) -> None:
    past.mkdir("a")
    past.mkdir("a/tmp")
    past.mkdir("final")
    past.save("other", b"unsealed")
    past.rename("a/tmp", "final")
    past.rename("a", "final/a")
    past.lose_power()
    past.recover(same_instance=False)
    assert past.all_paths() == ["final", "final/a"]


# --- both ---------------------------------------------------------------------------------------------------------------


def test_lanes_that_no_image_names_are_removed_and_others_stay(past: Past) -> None:
    saved(past, "f")
    past.save("g", NEW)
    past.lose_power(commits=0, keep_lane=lambda _: True)
    report = past.recover(same_instance=False)
    assert len(report.lanes_swept) == 2
    assert past.content("f") == OLD


@pytest.mark.parametrize("point", ["recovery.before-commit", "recovery.committed", "barrier.before"])
def test_recovery_that_dies_half_way_is_repeated(past: Past, point: str) -> None:
    saved(past, "f")
    past.save("f", NEW)
    past.save("g", NEW)
    past.unlink("f")
    past.lose_power()
    faults.arm(f"{point}=EIO")
    try:
        with pytest.raises(OSError, match=point):
            past.recover(same_instance=False)
    finally:
        faults.arm("")
    past.die()
    past.recover(same_instance=False)
    assert past.all_paths() == ["f"]
    assert past.content("f") == OLD


@pytest.mark.parametrize("same_instance", [True, False])
def test_recovering_twice_changes_nothing(past: Past, *, same_instance: bool) -> None:
    saved(past, "f")
    saved(past, "edited")
    overwriting(past, "f")
    past.write("edited", b"xx", 5)
    past.create("new")
    past.write("new", NEW)
    past.unlink("edited")
    past.lose_power(keep_lane=lambda _: same_instance)
    past.recover(same_instance=same_instance)
    once = dump(past)
    past.recover(same_instance=same_instance)
    assert dump(past) == once
