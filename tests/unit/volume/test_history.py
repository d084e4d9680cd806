"""``previous`` and ``undelete``: what was there, and how it comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs.errors import IsADirectory, NameNotFound, ProtectedData
from ckptfs.meta import removals
from ckptfs.meta.schema import ROOT_INO
from ckptfs.volume import fsck, history
from ckptfs.volume.reports import PreviousVersion
from tests.unit.volume.past import Past

WINDOW_S = 3600.0


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    made = Past(tmp_path)
    yield made
    assert made.look(fsck._check_metadata, made.stripes, False, made.now_ns).damage == []
    made.close()


def previous(past: Past, path: str) -> list[PreviousVersion]:
    return past.look(history.previous_versions, path.encode(), WINDOW_S)


def restore(past: Past, path: str) -> history.Changed:
    return past.do(history.restore_previous, path.encode(), past.now_ns)


def undelete(past: Past, path: str) -> history.Changed:
    return past.do(history.undelete, path.encode(), past.now_ns)


def removed(past: Past, path: str = "") -> list[str]:
    return [name.path.decode() for name in past.look(history.removed_names, path.encode(), WINDOW_S)]


def sealed(past: Past, path: str, data: bytes) -> None:
    past.save(path, data)
    past.seal_everything()


def test_p_undelete_a_replaced_content_comes_back_and_can_be_exchanged_again(past: Past) -> None:
    sealed(past, "f", b"one")
    sealed(past, "f", b"two!")
    [version] = previous(past, "f")
    assert (version.size, version.state, version.kind) == (3, "sealed", "replaced")
    assert version.expires_s is not None
    changed = restore(past, "f")
    assert past.content("f") == b"one"
    assert changed.inodes == {past.ino("f"), ROOT_INO}
    assert changed.names == [(ROOT_INO, b"f")]
    restore(past, "f")
    assert past.content("f") == b"two!"


def test_p_trainer_killed_the_predecessor_of_a_torn_file_is_listed_as_held_and_comes_back(past: Past) -> None:
    sealed(past, "f", b"good")
    past.truncate_by_open("f")
    past.write("f", b"torn by a killed trainer")
    past.seal("f", flushed=False)
    [version] = previous(past, "f")
    assert version.expires_s is None
    restore(past, "f")
    assert past.content("f") == b"good"


def test_a_restored_content_that_is_then_edited_is_not_exchanged_again_by_a_crash(past: Past) -> None:
    sealed(past, "f", b"one")
    sealed(past, "f", b"two!")
    restore(past, "f")
    past.barrier()
    past.write("f", b"O", 0)
    past.lose_power(keep_lane=lambda _: True)
    past.recover(same_instance=False)
    assert past.content("f") == b"One"


def test_the_loser_of_a_rename_gets_its_name_back_and_the_winner_goes_into_the_log(past: Past) -> None:
    sealed(past, "f", b"one")
    sealed(past, "tmp", b"two")
    past.rename("tmp", "f")
    assert [version.kind for version in previous(past, "f")] == ["renamed_over"]
    restore(past, "f")
    assert past.content("f") == b"one"
    assert [version.kind for version in previous(past, "f")] == ["unlinked"]
    restore(past, "f")
    assert past.content("f") == b"two"


def test_an_unlinked_file_comes_back_by_previous_too(past: Past) -> None:
    sealed(past, "f", b"one")
    past.unlink("f")
    restore(past, "f")
    assert past.content("f") == b"one"
    assert past.look(removals.everything) == []


def test_the_newest_finished_content_is_chosen(past: Past) -> None:
    sealed(past, "f", b"first")
    sealed(past, "f", b"second")
    past.save("f", b"not sealed yet")
    past.save("f", b"now")
    assert [version.state for version in previous(past, "f")] == ["landing", "sealed", "sealed"]
    restore(past, "f")
    assert past.content("f") == b"second"


def test_a_content_that_another_inode_had_under_the_name_comes_back_to_the_name(past: Past) -> None:
    sealed(past, "f", b"one")
    sealed(past, "f", b"two")
    past.rename("f", "moved")
    sealed(past, "f", b"three")
    restore(past, "f")
    assert past.content("f") == b"one"
    assert past.content("moved") == b"two"


def test_a_file_replaced_and_then_unlinked_comes_back_with_the_content_that_was_finished(past: Past) -> None:
    sealed(past, "f", b"good")
    past.truncate_by_open("f")
    past.write("f", b"torn")
    past.unlink("f")
    restore(past, "f")
    assert past.content("f") == b"good"


def test_where_nothing_is_kept_it_says_so(past: Past) -> None:
    past.mkdir("d")
    sealed(past, "f", b"one")
    assert previous(past, "f") == []
    with pytest.raises(NameNotFound, match="no finished previous content"):
        restore(past, "f")
    with pytest.raises(NameNotFound):
        previous(past, "g")
    with pytest.raises(NameNotFound):
        previous(past, "nowhere/g")
    with pytest.raises(IsADirectory):
        restore(past, "d")


def test_p_undelete_a_removed_tree_comes_back_whole(past: Past) -> None:
    past.mkdir("step")
    past.mkdir("step/optimizer")
    sealed(past, "step/model", b"model")
    sealed(past, "step/optimizer/shard", b"shard")
    past.symlink("latest", b"step")
    for path in ("step/optimizer/shard", "step/model"):
        past.unlink(path)
    past.rmdir("step/optimizer")
    past.rmdir("step")
    assert removed(past) == ["step", "step/optimizer", "step/model", "step/optimizer/shard"]
    assert removed(past, "step/optimizer") == ["step/optimizer", "step/optimizer/shard"]
    changed = undelete(past, "step")
    assert sorted(changed.paths) == [b"step", b"step/model", b"step/optimizer", b"step/optimizer/shard"]
    assert past.content("step/model") == b"model"
    assert past.content("step/optimizer/shard") == b"shard"
    assert removed(past) == []


def test_a_file_comes_back_with_the_removed_directories_above_it_and_nothing_else(past: Past) -> None:
    past.mkdir("d")
    sealed(past, "d/f", b"f")
    sealed(past, "d/g", b"g")
    past.unlink("d/f")
    past.unlink("d/g")
    past.rmdir("d")
    undelete(past, "d/f")
    assert past.all_paths() == ["d", "d/f"]


def test_a_directory_that_is_there_gets_back_what_was_removed_from_it(past: Past) -> None:
    past.mkdir("d")
    sealed(past, "d/f", b"old")
    past.unlink("d/f")
    sealed(past, "d/g", b"lost")
    past.unlink("d/g")
    sealed(past, "d/f", b"new")
    undelete(past, "d")
    assert past.content("d/f") == b"new"
    assert past.content("d/g") == b"lost"


def test_the_latest_of_several_removed_files_of_one_name_comes_back(past: Past) -> None:
    for data in (b"one", b"two"):
        sealed(past, "f", data)
        past.unlink("f")
    undelete(past, "f")
    assert past.content("f") == b"two"
    assert removed(past) == ["f"]


def test_a_name_that_is_taken_is_refused_and_says_what_to_do(past: Past) -> None:
    past.mkdir("d")
    past.rmdir("d")
    past.mkdir("d")
    with pytest.raises(ProtectedData, match="Move it away"):
        undelete(past, "d")
    sealed(past, "f", b"one")
    sealed(past, "tmp", b"two")
    past.rename("tmp", "f")
    with pytest.raises(ProtectedData, match="ckptfs previous"):
        undelete(past, "f")

    with pytest.raises(NameNotFound):
        undelete(past, "never")
    with pytest.raises(ProtectedData, match="is a file now"):
        undelete(past, "f/below")


def test_a_hard_link_comes_back_beside_the_other_name(past: Past) -> None:
    sealed(past, "f", b"one")
    past.link("f", "g")
    past.unlink("g")
    undelete(past, "g")
    assert past.ino("f") == past.ino("g")
    row = past.inode("f")
    assert row is not None
    assert row.nlink == 2
