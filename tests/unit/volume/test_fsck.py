"""``fsck``: every kind of damage is found, repaired as the table says, and is gone afterwards; the quarantine ends as asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, delete, insert, update

from ckptfs.errors import ProtectedData, VolumeInUse
from ckptfs.image.files import lane_path
from ckptfs.meta import generations, names, removals, runs
from ckptfs.meta.schema import ROOT_INO, entry, inode, removal
from ckptfs.volume import fsck
from ckptfs.volume.format import METADATA_NAME
from ckptfs.volume.lock import VolumeLock
from ckptfs.volume.reports import FsckMode, FsckReport
from tests.unit.volume.past import Past


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    made = Past(tmp_path)
    yield made
    made.close()


def check(past: Past, mode: FsckMode = FsckMode.CHECK, *, clean: bool = True) -> FsckReport:
    last = past.look(runs.last)
    assert last is not None
    if clean:
        past.do(runs.end_clean, last.id)
    past.close()
    report = fsck.check(past.directory, mode)
    past.database = type(past.database).open(past.directory / METADATA_NAME)
    return report


def kinds(report: FsckReport) -> list[str]:
    return [damage.kind for damage in report.damage]


def sealed(past: Past, path: str, data: bytes = b"content over both lanes") -> None:
    past.save(path, data)
    past.seal_everything()


def cut_a_lane(past: Past, path: str) -> None:
    row = past.generation(path)
    assert row.image is not None
    lane_path(past.stripes[1], row.image.id, 1).unlink()


def test_a_sound_volume_has_no_damage_whatever_its_log_holds(past: Past) -> None:
    past.mkdir("d")
    sealed(past, "d/f")
    sealed(past, "d/f", b"again")
    past.link("d/f", "g")
    past.unlink("d/f")
    past.rmdir("d")
    report = check(past)
    assert report.damage == []
    assert (report.inodes_checked, report.generations_checked, report.lanes_checked) == (3, 2, 3)


def _unentered(connection: Connection) -> None:
    connection.execute(delete(entry).where(entry.c.name == b"f"))
    connection.execute(update(inode).where(inode.c.ino != ROOT_INO).values(nlink=0))


def _entry_without_inode(connection: Connection) -> None:
    connection.execute(insert(entry).values(parent=ROOT_INO, name=b"ghost", ino=999))


def _wrong_links(connection: Connection) -> None:
    connection.execute(update(inode).values(nlink=7))


def _record_of_nothing(connection: Connection) -> None:
    connection.execute(
        insert(removal).values(
            tick=999, kind="unlinked", parent=1, name=b"x", ino=999, removed_ns=1, acknowledged=False
        )
    )


def _second_content(connection: Connection) -> None:
    row = names.find(connection, ROOT_INO, b"f")
    assert row is not None
    added = generations.add(connection, row.ino, 1).id
    generations.set_sealed(connection, added, size=0, sealed_size=0, unsealed_since=None, flushed=True)
    generations.set_current(connection, row.ino, generations.of_inode(connection, row.ino)[0].id)


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (_unentered, [fsck.LOST_INODE]),
        (_entry_without_inode, [fsck.DANGLING_ENTRY]),
        (_wrong_links, [fsck.LINK_COUNT, fsck.LINK_COUNT]),
        (_record_of_nothing, [fsck.DANGLING_RECORD]),
        (_second_content, [fsck.LOST_CONTENT]),
    ],
)
def test_damaged_metadata_is_found_and_repaired(
    past: Past, harm: Callable[[Connection], None], found: list[str]
) -> None:
    sealed(past, "f")
    past.do(harm)
    report = check(past)
    assert kinds(report) == found
    assert not any(damage.repaired for damage in report.damage)
    report = check(past, FsckMode.REPAIR)
    assert kinds(report) == found
    assert all(damage.repaired for damage in report.damage)
    assert check(past).damage == []


def test_an_inode_without_a_name_is_found_in_the_quarantine_after_a_repair(past: Past) -> None:
    sealed(past, "f")
    past.do(_unentered)
    report = check(past, FsckMode.REPAIR)
    assert len(report.quarantine) == 1
    report = check(past, FsckMode.RESTORE)
    [path] = report.restored
    assert past.content(path.decode()) == b"content over both lanes"


def test_a_lost_directory_gets_a_name_in_the_root(past: Past) -> None:
    past.mkdir("d")
    sealed(past, "d/f")
    past.do(lambda connection: connection.execute(delete(entry).where(entry.c.name == b"d")))
    check(past, FsckMode.REPAIR)
    [above, _] = past.all_paths()
    assert past.content(f"{above}/f") == b"content over both lanes"
    assert check(past).damage == []


def test_a_missing_lane_is_found_and_the_predecessor_put_back(past: Past) -> None:
    sealed(past, "f", b"the predecessor, on both lanes")
    sealed(past, "f")
    cut_a_lane(past, "f")
    report = check(past)
    assert kinds(report) == [fsck.SHORT_LANE]
    assert report.damage[0].path == b"f"
    report = check(past, FsckMode.REPAIR)
    assert past.content("f") == b"the predecessor, on both lanes"
    assert [file.path for file in report.quarantine] == [b"f"]
    assert check(past).damage == []


def test_a_damaged_winner_of_a_rename_gives_the_name_back(past: Past) -> None:
    sealed(past, "f", b"the old file, on both lanes")
    sealed(past, "tmp")
    past.rename("tmp", "f")
    cut_a_lane(past, "f")
    check(past, FsckMode.REPAIR)
    assert past.content("f") == b"the old file, on both lanes"
    assert check(past).damage == []


def test_a_damaged_file_without_a_predecessor_loses_its_name(past: Past) -> None:
    sealed(past, "f")
    cut_a_lane(past, "f")
    check(past, FsckMode.REPAIR)
    assert past.all_paths() == []
    assert check(past).damage == []


def test_lanes_that_nothing_names_are_found_and_removed(past: Past) -> None:
    sealed(past, "f")
    stray = lane_path(past.stripes[0], 0xABC, 0)
    stray.write_bytes(b"stray")
    assert kinds(check(past)) == [fsck.ORPHAN_LANE]
    assert stray.exists()
    assert kinds(check(past, FsckMode.REPAIR)) == [fsck.ORPHAN_LANE]
    assert not stray.exists()
    assert past.content("f") == b"content over both lanes"


def quarantined(past: Past) -> None:
    sealed(past, "f", b"good")
    past.save("f", b"bad")
    past.save("new", b"never sealed")
    past.lose_power(keep_lane=lambda _: True)
    past.recover(same_instance=False)


def test_p_quarantine_is_listed_and_damages_nothing(past: Past) -> None:
    quarantined(past)
    report = check(past)
    assert report.damage == []
    assert sorted((file.path, file.size) for file in report.quarantine) == [(b"f", 3), (b"new", 12)]


def test_p_quarantine_restore_gives_free_names_back_and_others_beside(past: Past) -> None:
    quarantined(past)
    report = check(past, FsckMode.RESTORE)
    assert sorted(report.restored) == [b"f.restored", b"new"]
    assert past.content("f") == b"good"
    assert past.content("f.restored") == b"bad"
    assert past.content("new") == b"never sealed"
    assert report.quarantine == []
    assert check(past).damage == []


def test_p_quarantine_discard_frees_it(past: Past) -> None:
    quarantined(past)
    report = check(past, FsckMode.DISCARD)
    assert (report.discarded, report.quarantine) == (2, [])
    assert past.all_paths() == ["f"]
    assert len(past.look(generations.everything)) == 1
    assert past.look(removals.everything) == []
    assert len([lane for stripe in past.stripes for lane in (stripe / "images").iterdir()]) == 1
    assert check(past).damage == []


def test_a_volume_that_is_yet_to_recover_is_checked_and_its_quarantine_left_alone(past: Past) -> None:
    past.save("f", b"unsealed")
    lane_path(past.stripes[0], 0xABC, 0).write_bytes(b"left by a lost commit")
    assert check(past, clean=False).damage == []
    with pytest.raises(ProtectedData, match="did not end cleanly"):
        check(past, FsckMode.DISCARD, clean=False)


def test_a_damaged_database_is_reported_and_left_alone(past: Past) -> None:
    for number in range(50):
        past.create(f"some-long-name-{number:050}")
    past.close()
    path = past.directory / METADATA_NAME
    damaged = bytearray(path.read_bytes())
    for page in range(4096, len(damaged), 4096):
        damaged[page : page + 64] = b"\xff" * 64
    path.write_bytes(damaged)
    assert kinds(fsck.check(past.directory)) == [fsck.DATABASE]
    assert path.read_bytes() == damaged
    path.unlink()
    assert kinds(fsck.check(past.directory)) == [fsck.DATABASE]
    assert not path.exists()


def test_a_volume_in_use_is_refused(past: Past) -> None:
    with VolumeLock.acquire(past.directory), pytest.raises(VolumeInUse):
        fsck.check(past.directory)
