"""What each query answers and records, one module after the other."""

from __future__ import annotations

import stat
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import pytest
from sqlalchemy import Connection

from ckptfs.meta import generations, inodes, names, removals, runs
from ckptfs.meta.database import Database
from ckptfs.meta.generations import GenerationRow
from ckptfs.meta.names import EntryRow
from ckptfs.meta.schema import ROOT_INO, RemovalKind, State

P = ParamSpec("P")
T = TypeVar("T")


class Metadata:
    """A database, and the records that most tests need first."""

    def __init__(self, database: Database) -> None:
        self.do = database.transact

    def file(self, name: bytes = b"f", parent: int = ROOT_INO) -> int:
        def make(connection: Connection) -> int:
            ino = inodes.add(connection, mode=stat.S_IFREG | 0o644, uid=1, gid=2, now_ns=100)
            generations.add(connection, ino, 100)
            names.add(connection, parent, name, ino)
            return ino

        return self.do(make)

    def directory(self, name: bytes = b"d", parent: int = ROOT_INO) -> int:
        def make(connection: Connection) -> int:
            ino = inodes.add(connection, mode=stat.S_IFDIR | 0o755, uid=1, gid=2, now_ns=100, nlink=2)
            names.add(connection, parent, name, ino)
            return ino

        return self.do(make)

    def current(self, ino: int) -> GenerationRow:
        row = self.do(generations.current, ino)
        assert row is not None
        return row

    def entry(self, name: bytes) -> EntryRow:
        found = self.do(names.find, ROOT_INO, name)
        assert found is not None
        return found

    def seal(self, generation_id: int, size: int = 5) -> None:
        self.do(generations.set_sealed, generation_id, size=size, sealed_size=size, unsealed_since=None, flushed=True)

    def replace(self, ino: int) -> tuple[int, int]:
        """O_TRUNC; the old generation and the new one."""

        def replace(connection: Connection) -> tuple[int, int]:
            old = generations.current(connection, ino)
            assert old is not None
            generations.set_current(connection, ino, None)
            new = generations.add(connection, ino, 200)
            removals.add(
                connection,
                RemovalKind.REPLACED,
                parent=ROOT_INO,
                name=b"f",
                ino=ino,
                now_ns=200,
                generation_id=old.id,
                winner=new.id,
            )
            return old.id, new.id

        return self.do(replace)

    def lose(self, ino: int, name: bytes = b"f", now_ns: int = 300, **more: object) -> None:
        """A record of a name that was unlinked, or as ``more`` says."""
        kind = more.pop("kind", RemovalKind.UNLINKED)
        self.do(removals.add, kind, parent=ROOT_INO, name=name, ino=ino, now_ns=now_ns, **more)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def metadata(database: Database) -> Metadata:
    return Metadata(database)


# --- inodes ------------------------------------------------------------------------------------------------------------


def test_an_inode_shows_what_it_was_made_with_and_the_size_of_its_current_generation(metadata: Metadata) -> None:
    ino = metadata.file()
    row = metadata.do(inodes.find, ino)
    assert row is not None
    assert (row.mode, row.uid, row.gid, row.nlink, row.mtime_ns) == (stat.S_IFREG | 0o644, 1, 2, 1, 100)
    assert row.is_regular
    assert row.size == 0
    metadata.seal(metadata.current(ino).id, 7)
    row = metadata.do(inodes.find, ino)
    assert row is not None
    assert (row.size, row.generation) == (7, metadata.current(ino).id)


def test_the_size_of_a_symbolic_link_is_that_of_its_target(metadata: Metadata) -> None:
    ino = metadata.do(inodes.add, mode=stat.S_IFLNK | 0o777, uid=0, gid=0, now_ns=1, target=b"\xff/b")
    row = metadata.do(inodes.find, ino)
    assert row is not None
    assert (row.target, row.size, row.generation) == (b"\xff/b", 3, None)


def test_an_inode_number_is_never_used_twice(metadata: Metadata) -> None:
    first = metadata.do(inodes.add, mode=stat.S_IFREG, uid=0, gid=0, now_ns=1)
    metadata.do(inodes.remove, first)
    assert metadata.do(inodes.find, first) is None
    assert metadata.do(inodes.add, mode=stat.S_IFREG, uid=0, gid=0, now_ns=1) > first


def test_links_and_times_change_as_asked(metadata: Metadata) -> None:
    ino = metadata.directory()
    metadata.do(inodes.add_links, ino, 3, 7)
    metadata.do(inodes.touch_directory, ino, 9, links=-1)
    row = metadata.do(inodes.find, ino)
    assert row is not None
    assert (row.nlink, row.mtime_ns, row.ctime_ns) == (4, 9, 9)
    metadata.do(inodes.touch_directory, ino, 11)
    metadata.do(inodes.set_links, ino, 0, 12)
    metadata.do(inodes.set_changed, ino, 13)
    row = metadata.do(inodes.find, ino)
    assert row is not None
    assert (row.nlink, row.mtime_ns, row.ctime_ns) == (0, 11, 13)
    metadata.do(inodes.set_times, ino, 1, 2, 3)
    metadata.do(inodes.set_columns, ino, {"uid": 8, "mode": stat.S_IFDIR | 0o700})
    row = metadata.do(inodes.find, ino)
    assert row is not None
    assert (row.atime_ns, row.mtime_ns, row.ctime_ns, row.uid, row.mode) == (1, 2, 3, 8, stat.S_IFDIR | 0o700)


@pytest.mark.parametrize(("before", "after"), [(0o6755, 0o755), (0o2644, 0o2644), (0o4600, 0o600), (0o1777, 0o1777)])
def test_setid_bits_that_mean_execution_are_dropped(before: int, after: int, metadata: Metadata) -> None:
    ino = metadata.do(inodes.add, mode=stat.S_IFREG | before, uid=0, gid=0, now_ns=1)
    metadata.do(inodes.drop_setid, ino)
    row = metadata.do(inodes.find, ino)
    assert row is not None
    assert row.mode == stat.S_IFREG | after


def test_extended_attributes_are_set_replaced_listed_and_removed(metadata: Metadata) -> None:
    ino = metadata.file()
    assert metadata.do(inodes.get_xattr, ino, b"user.a") is None
    metadata.do(inodes.set_xattr, ino, b"user.b", b"", 5)
    metadata.do(inodes.set_xattr, ino, b"user.a", b"one", 6)
    metadata.do(inodes.set_xattr, ino, b"user.a", b"\x00two", 7)
    assert metadata.do(inodes.get_xattr, ino, b"user.a") == b"\x00two"
    assert metadata.do(inodes.get_xattr, ino, b"user.b") == b""
    assert metadata.do(inodes.list_xattrs, ino) == [b"user.a", b"user.b"]
    assert metadata.do(inodes.remove_xattr, ino, b"user.a", 8)
    assert not metadata.do(inodes.remove_xattr, ino, b"user.a", 9)
    row = metadata.do(inodes.find, ino)
    assert row is not None
    assert row.ctime_ns == 8
    metadata.do(inodes.remove, ino)
    assert metadata.do(inodes.list_xattrs, ino) == []


# --- names -------------------------------------------------------------------------------------------------------------


def test_a_name_is_bytes_and_means_one_inode(metadata: Metadata) -> None:
    ino = metadata.file(b"\xff\xfe")
    found = metadata.do(names.find, ROOT_INO, b"\xff\xfe")
    assert found is not None
    assert found.ino == ino
    row = metadata.do(names.find_inode, ROOT_INO, b"\xff\xfe")
    assert row is not None
    assert row.ino == ino
    assert metadata.do(names.find, ROOT_INO, b"\xff") is None
    assert metadata.do(names.find_inode, ino, b"\xff\xfe") is None


def test_positions_stay_while_entries_are_removed_renamed_and_added(metadata: Metadata) -> None:
    for number in range(6):
        metadata.file(b"f%d" % number)
    first = metadata.do(names.page, ROOT_INO, 0, 2)
    assert [entry.name for entry, _ in first] == [b"f0", b"f1"]
    metadata.do(names.remove, first[0][0])
    metadata.do(names.remove, metadata.entry(b"f3"))
    metadata.do(names.move, metadata.entry(b"f1"), ROOT_INO, b"renamed")
    metadata.file(b"new")
    rest = metadata.do(names.page, ROOT_INO, first[1][0].cookie, 100)
    assert [entry.name for entry, _ in rest] == [b"f2", b"f4", b"f5", b"new"]
    assert [row.ino for _, row in rest] == [entry.ino for entry, _ in rest]
    assert metadata.do(names.page, ROOT_INO, rest[-1][0].cookie, 100) == []


def test_paths_are_resolved_without_following_links_and_without_dot_dot(metadata: Metadata) -> None:
    directory = metadata.directory()
    ino = metadata.file(b"f", directory)
    found = metadata.do(names.resolve, b"/d//./f/")
    assert found is not None
    assert found.ino == ino
    root = metadata.do(names.resolve, b"")
    assert root is not None
    assert root.ino == ROOT_INO
    assert metadata.do(names.resolve, b"d/../d/f") is None
    assert metadata.do(names.resolve, b"missing/f") is None


def test_a_path_is_told_from_an_inode_also_below_a_directory_that_only_the_log_knows(metadata: Metadata) -> None:
    directory = metadata.directory()
    ino = metadata.file(b"f", directory)
    assert metadata.do(names.path_of_inode, ino) == b"d/f"
    metadata.do(names.remove, metadata.entry(b"d"))
    assert metadata.do(names.path_of_inode, ino) == b"?/f"
    metadata.lose(directory, b"d")
    assert metadata.do(names.path_of_inode, ino) == b"d/f"
    assert metadata.do(names.path_of_inode, ROOT_INO) == b""


def test_what_lies_inside_a_directory_is_known_at_any_depth(metadata: Metadata) -> None:
    outer = metadata.directory(b"outer")
    inner = metadata.directory(b"inner", outer)
    other = metadata.directory(b"other")
    assert metadata.do(names.is_inside, inner, outer)
    assert metadata.do(names.is_inside, outer, outer)
    assert not metadata.do(names.is_inside, outer, inner)
    assert not metadata.do(names.is_inside, other, outer)
    assert metadata.do(names.is_inside, inner, ROOT_INO)


def test_a_directory_is_empty_until_it_has_an_entry(metadata: Metadata) -> None:
    directory = metadata.directory()
    assert metadata.do(names.is_empty, directory)
    ino = metadata.file(b"f", directory)
    assert not metadata.do(names.is_empty, directory)
    assert metadata.do(names.unsealed_in, directory, {ino, 99}) == {ino}
    assert metadata.do(names.unsealed_in, ROOT_INO, {ino, 99}) == set()


# --- generations -------------------------------------------------------------------------------------------------------


def test_a_new_generation_is_landing_empty_and_flushed(metadata: Metadata) -> None:
    row = metadata.current(metadata.file())
    assert (row.state, row.size, row.sealed_size, row.flushed, row.image) == (State.LANDING, 0, None, True, None)
    assert row.unsealed_since is not None
    assert metadata.do(generations.oldest_unsealed) == row.unsealed_since
    assert metadata.do(generations.the, row.id) == row


def test_a_generation_goes_from_landing_to_sealed_and_back_with_a_later_tick(metadata: Metadata) -> None:
    ino = metadata.file()
    first = metadata.current(ino)
    metadata.do(generations.set_flushed, first.id, flushed=True, size=5)
    metadata.seal(first.id, 5)
    row = metadata.current(ino)
    assert (row.state, row.size, row.sealed_size, row.unsealed_since) == (State.SEALED, 5, 5, None)
    assert metadata.do(generations.oldest_unsealed) is None
    assert metadata.do(generations.landing) == []
    tick = metadata.do(generations.mark_dirty, first.id)
    row = metadata.current(ino)
    assert (row.state, row.flushed, row.sealed_size, row.unsealed_since) == (State.LANDING, False, 5, tick)
    assert first.unsealed_since is not None
    assert tick > first.unsealed_since
    assert metadata.do(generations.count_torn) == 1


def test_a_truncate_leaves_no_more_bytes_on_disk_for_certain_than_the_file_has(metadata: Metadata) -> None:
    ino = metadata.file()
    row = metadata.current(ino)
    metadata.seal(row.id, 9)
    metadata.do(generations.set_size, row.id, 4)
    assert (metadata.current(ino).size, metadata.current(ino).sealed_size) == (4, 4)
    metadata.do(generations.set_size, row.id, 20)
    assert (metadata.current(ino).size, metadata.current(ino).sealed_size) == (20, 4)


def test_an_image_belongs_to_its_generation_until_that_goes_and_then_waits_to_be_unlinked(metadata: Metadata) -> None:
    ino = metadata.file()
    row = metadata.current(ino)
    image = metadata.do(
        generations.add_image, row.id, chunk_size=8, first=0, stripes=(2,), owner="node", boot_id="boot"
    )
    metadata.do(generations.widen_image, image.id, 0, (2, 0, 1))
    metadata.do(generations.set_lane_sizes, row.id, [8, 3, 0])
    found = metadata.current(ino).image
    assert found is not None
    assert (found.id, found.stripes, found.lane_sizes) == (image.id, (2, 0, 1), (8, 3, 0))
    assert [one.id for one in metadata.do(generations.with_images)] == [row.id]
    metadata.do(generations.remove, row.id)
    assert metadata.do(generations.current, ino) is None
    [dropping] = metadata.do(generations.dropping_images)
    assert (dropping.id, dropping.stripes) == (image.id, (2, 0, 1))
    metadata.do(generations.forget_images, [image.id])
    assert metadata.do(generations.dropping_images) == []


def test_an_image_id_is_never_used_twice(metadata: Metadata) -> None:
    where = {"chunk_size": 8, "first": 0, "stripes": (0,), "owner": "", "boot_id": ""}
    row = metadata.current(metadata.file())
    image = metadata.do(generations.add_image, row.id, **where)  # pyright: ignore[reportArgumentType]
    metadata.do(generations.remove, row.id)
    metadata.do(generations.forget_images, [image.id])
    other = metadata.current(metadata.file(b"g"))
    assert metadata.do(generations.add_image, other.id, **where).id > image.id  # pyright: ignore[reportArgumentType]


def test_generations_are_counted_by_state_and_by_bytes(metadata: Metadata) -> None:
    metadata.file(b"a")
    metadata.seal(metadata.current(metadata.file(b"b")).id, 6)
    metadata.seal(metadata.current(metadata.file(b"c")).id, 4)
    counts = metadata.do(generations.count_by_state)
    assert counts == {State.LANDING: 1, State.SEALED: 2, State.PACKED: 0}
    assert metadata.do(generations.current_bytes) == 10


def test_in_question_after_a_crash_is_what_is_not_sealed_and_what_is_current_and_torn(metadata: Metadata) -> None:
    sealed = metadata.current(metadata.file(b"sealed"))
    metadata.seal(sealed.id)
    torn = metadata.current(metadata.file(b"torn"))
    metadata.do(generations.set_sealed, torn.id, size=5, sealed_size=5, unsealed_since=None, flushed=False)
    landing = metadata.current(metadata.file(b"landing"))
    assert [row.id for row in metadata.do(generations.doubtful)] == [torn.id, landing.id]


def test_the_acknowledged_name_of_an_empty_file_is_kept(metadata: Metadata) -> None:
    ino = metadata.file()
    metadata.do(generations.acknowledge_empty, metadata.current(ino).id, ROOT_INO, b"f")
    row = metadata.current(ino)
    assert (row.state, row.sealed_size) == (State.LANDING, 0)
    assert (row.acknowledged_parent, row.acknowledged_name) == (ROOT_INO, b"f")


# --- the removal log ---------------------------------------------------------------------------------------------------


def oldest(query: Callable[Concatenate[Connection, int | None, P], T]) -> Callable[Concatenate[Connection, P], T]:
    """The query with the tick of the oldest unsealed generation filled in."""

    def asked(connection: Connection, *args: P.args, **kwargs: P.kwargs) -> T:
        return query(connection, generations.oldest_unsealed(connection), *args, **kwargs)

    return asked


def test_a_record_is_held_while_something_is_unsealed_since_before_it(metadata: Metadata) -> None:
    early = metadata.file(b"early")
    metadata.seal(metadata.current(early).id)
    metadata.lose(early, b"early")
    late = metadata.file(b"late")
    metadata.lose(early, b"after")
    held = metadata.do(oldest(removals.held))
    assert [record.name for record in held] == [b"after"]
    assert [record.name for record in metadata.do(oldest(removals.free_to_go), 1000, 10)] == [b"early"]
    metadata.seal(metadata.current(late).id)
    assert metadata.do(oldest(removals.held)) == []
    assert [record.name for record in metadata.do(oldest(removals.free_to_go), 1000, 10)] == [b"early", b"after"]


def test_a_replaced_content_is_held_also_while_its_successor_is_unsealed_or_torn(metadata: Metadata) -> None:
    ino = metadata.file()
    metadata.seal(metadata.current(ino).id)
    old, new = metadata.replace(ino)
    assert [record.generation for record in metadata.do(oldest(removals.held))] == [old]
    metadata.do(generations.set_sealed, new, size=3, sealed_size=3, unsealed_since=None, flushed=False)
    assert [record.generation for record in metadata.do(oldest(removals.held))] == [old]
    metadata.seal(new)
    assert metadata.do(oldest(removals.held)) == []


def test_records_go_oldest_first_in_pages_and_only_when_they_are_old_enough(metadata: Metadata) -> None:
    ino = metadata.file()
    metadata.seal(metadata.current(ino).id)
    for number in range(5):
        metadata.lose(ino, b"%d" % number, now_ns=1000 + number)
    page = metadata.do(oldest(removals.free_to_go), 1004, 3)
    assert [record.name for record in page] == [b"0", b"1", b"2"]
    rest = metadata.do(oldest(removals.free_to_go), 1004, 3, page[-1].tick)
    assert [record.name for record in rest] == [b"3"]
    metadata.do(removals.remove, page[0].tick)
    assert [record.name for record in metadata.do(removals.everything)] == [b"4", b"3", b"2", b"1"]


def test_what_a_name_and_an_inode_and_a_directory_lost_is_found_newest_first(metadata: Metadata) -> None:
    one, other = metadata.file(b"one"), metadata.file(b"other")
    metadata.lose(one, b"f", now_ns=1)
    metadata.lose(other, b"f", now_ns=2)
    metadata.lose(one, b"g", now_ns=3)
    assert [record.ino for record in metadata.do(removals.of_name, ROOT_INO, b"f")] == [other, one]
    assert [record.name for record in metadata.do(removals.of_inode, one)] == [b"g", b"f"]
    assert [record.name for record in metadata.do(removals.in_directory, ROOT_INO)] == [b"g", b"f", b"f"]
    assert metadata.do(removals.mentions, one)
    metadata.do(removals.forget_names_of, one)
    assert not metadata.do(removals.mentions, one)


def test_predecessors_are_found_through_the_generation_that_replaced_them(metadata: Metadata) -> None:
    ino = metadata.file()
    first, second = metadata.replace(ino)
    _, third = metadata.replace(ino)
    assert [record.generation for record in metadata.do(removals.predecessors, third)] == [second]
    assert [record.generation for record in metadata.do(removals.predecessors, second)] == [first]
    record = metadata.do(removals.of_generation, first)
    assert record is not None
    assert record.winner == second
    metadata.do(removals.set_winner, second, third)
    assert [record.generation for record in metadata.do(removals.predecessors, third)] == [second, first]


def test_an_fsync_makes_final_what_the_file_won_and_not_what_it_replaced(metadata: Metadata) -> None:
    winner, loser = metadata.file(b"winner"), metadata.file(b"loser")
    metadata.lose(loser, b"f", kind=RemovalKind.RENAMED_OVER, winner=winner, source_parent=ROOT_INO, source_name=b"w")
    metadata.lose(loser, b"x", kind=RemovalKind.EXCHANGED, winner=99, source_parent=ROOT_INO, source_name=b"y")
    metadata.replace(winner)
    assert metadata.do(removals.unacknowledged) == ({winner, loser, 99}, {ROOT_INO})
    assert metadata.do(removals.acknowledge, winner=winner) == 1
    assert metadata.do(removals.acknowledge, winner=winner) == 0
    assert metadata.do(removals.acknowledge, winner=loser) == 1
    states = {record.kind: record.acknowledged for record in metadata.do(removals.everything)}
    assert states == {RemovalKind.RENAMED_OVER: True, RemovalKind.EXCHANGED: True, RemovalKind.REPLACED: False}
    metadata.do(removals.acknowledge_replacement, metadata.current(winner).id)
    assert all(record.acknowledged for record in metadata.do(removals.everything))


def test_an_fsync_of_a_directory_makes_final_what_its_names_lost_and_what_left_it(metadata: Metadata) -> None:
    directory = metadata.directory()
    ino = metadata.file()
    metadata.lose(ino, b"here")
    metadata.lose(ino, b"from", kind=RemovalKind.RENAMED_OVER, winner=ino, source_parent=directory, source_name=b"s")
    assert metadata.do(removals.acknowledge, directory=directory) == 1
    assert metadata.do(removals.acknowledge, directory=ROOT_INO) == 1
    assert metadata.do(removals.unacknowledged) == (set(), set())


def test_images_of_replaced_generations_and_of_files_without_a_name_are_kept_by_the_log_alone(
    metadata: Metadata,
) -> None:
    ino = metadata.file()
    old = metadata.current(ino)
    where = {"chunk_size": 8, "first": 0, "stripes": (1, 0), "owner": "", "boot_id": ""}
    image = metadata.do(generations.add_image, old.id, **where)  # pyright: ignore[reportArgumentType]
    assert metadata.do(removals.images_kept, set()) == []
    metadata.replace(ino)
    assert metadata.do(removals.images_kept, {ino}) == [(image.id, "1 0")]


def test_images_of_unlinked_files_are_kept_by_the_log_alone(metadata: Metadata) -> None:
    ino = metadata.file()
    where = {"chunk_size": 8, "first": 0, "stripes": (0,), "owner": "", "boot_id": ""}
    image = metadata.do(generations.add_image, metadata.current(ino).id, **where)  # pyright: ignore[reportArgumentType]
    metadata.do(names.remove, metadata.entry(b"f"))
    metadata.do(inodes.add_links, ino, -1, 1)
    metadata.lose(ino)
    assert metadata.do(removals.images_kept, set()) == [(image.id, "0")]
    assert metadata.do(removals.images_kept, {ino}) == []


def test_a_generation_in_quarantine_is_neither_current_nor_unsealed(metadata: Metadata) -> None:
    ino = metadata.file()
    row = metadata.current(ino)
    metadata.do(removals.quarantine_generation, row.id, parent=ROOT_INO, name=b"f", reason="because", now_ns=5)
    assert metadata.do(generations.current, ino) is None
    assert metadata.do(generations.landing) == []
    [found] = metadata.do(removals.quarantined)
    assert (found.generation, found.name, found.reason, found.quarantined_ns) == (row.id, b"f", "because", 5)
    assert metadata.do(removals.quarantined_of, ino) == {row.id}
    metadata.do(removals.release_from_quarantine, row.id)
    assert metadata.do(removals.quarantined) == []


# --- runs --------------------------------------------------------------------------------------------------------------


def test_a_run_is_unclean_until_it_ends_as_it_should_and_only_the_last_is_remembered(metadata: Metadata) -> None:
    first = metadata.do(runs.begin, "boot mounts", 5)
    row = metadata.do(runs.last)
    assert row is not None
    assert (row.id, row.instance, row.started_ns, row.clean) == (first, "boot mounts", 5, False)
    metadata.do(runs.end_clean, first)
    row = metadata.do(runs.last)
    assert row is not None
    assert row.clean
    second = metadata.do(runs.begin, None, 6)
    row = metadata.do(runs.last)
    assert row is not None
    assert (row.id, row.instance, row.clean) == (second, None, False)
    assert second > first
