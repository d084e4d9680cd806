"""rename(2) and renameat2(2)."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.support.system import RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT, errno_of, renameat2

if TYPE_CHECKING:
    from pathlib import Path


def test_rename_replaces_a_file(place: Path) -> None:
    (place / "a").write_text("new")
    (place / "b").write_text("old")
    before = (place / "a").stat()
    (place / "a").rename(place / "b")
    assert os.listdir(place) == ["b"]
    after = (place / "b").stat()
    assert ((place / "b").read_text(), after.st_ino, after.st_mtime_ns) == ("new", before.st_ino, before.st_mtime_ns)
    assert after.st_ctime_ns > before.st_ctime_ns


def test_noreplace_refuses_a_name_that_is_taken(place: Path) -> None:
    """S-rename."""
    (place / "a").write_text("a")
    (place / "b").write_text("b")
    assert errno_of(renameat2, place / "a", place / "b", RENAME_NOREPLACE) == errno.EEXIST
    assert (place / "b").read_text() == "b"
    renameat2(place / "a", place / "c", RENAME_NOREPLACE)
    assert sorted(os.listdir(place)) == ["b", "c"]


def test_exchange_swaps_two_files(place: Path) -> None:
    """S-rename."""
    (place / "a").write_text("a")
    (place / "b").write_text("b")
    renameat2(place / "a", place / "b", RENAME_EXCHANGE)
    assert ((place / "a").read_text(), (place / "b").read_text()) == ("b", "a")


def test_exchange_swaps_a_file_and_a_full_directory_of_different_parents(place: Path) -> None:
    (place / "one" / "step").mkdir(parents=True)
    (place / "one" / "step" / "w").write_text("weights")
    (place / "two").mkdir()
    (place / "two" / "marker").write_text("m")
    renameat2(place / "one" / "step", place / "two" / "marker", RENAME_EXCHANGE)
    assert (place / "one" / "step").read_text() == "m"
    assert (place / "two" / "marker" / "w").read_text() == "weights"
    assert ((place / "one").stat().st_nlink, (place / "two").stat().st_nlink) == (2, 3)


def test_exchange_needs_both_names_and_other_flags_are_refused(place: Path) -> None:
    """S-rename."""
    (place / "a").touch()
    (place / "d" / "inside").mkdir(parents=True)
    assert errno_of(renameat2, place / "a", place / "b", RENAME_EXCHANGE) == errno.ENOENT
    assert errno_of(renameat2, place / "d", place / "d" / "inside", RENAME_EXCHANGE) == errno.EINVAL
    assert errno_of(renameat2, place / "a", place / "b", RENAME_EXCHANGE | RENAME_NOREPLACE) == errno.EINVAL
    assert errno_of(renameat2, place / "a", place / "b", 1 << 10) == errno.EINVAL


def test_a_whiteout_is_not_supported(on_mount: Path) -> None:
    """S-rename."""
    (on_mount / "a").touch()
    assert errno_of(renameat2, on_mount / "a", on_mount / "b", RENAME_WHITEOUT) == errno.EINVAL
    assert os.listdir(on_mount) == ["a"]


def test_directories_are_replaced_only_when_empty_and_never_by_files(place: Path) -> None:
    for name in ("x", "empty", "full"):
        (place / name).mkdir()
    (place / "full" / "f").touch()
    (place / "file").touch()
    assert errno_of(os.rename, place / "x", place / "full") == errno.ENOTEMPTY
    assert errno_of(os.rename, place / "x", place / "file") == errno.ENOTDIR
    assert errno_of(os.rename, place / "file", place / "empty") == errno.EISDIR
    assert errno_of(os.rename, place / "full", place / "full" / "sub") == errno.EINVAL
    assert errno_of(os.rename, place / "missing", place / "y") == errno.ENOENT
    assert errno_of(os.rename, place / "file", place / "no" / "y") == errno.ENOENT
    (place / "full").rename(place / "empty")
    assert (place / "empty" / "f").exists()
    assert sorted(os.listdir(place)) == ["empty", "file", "x"]


def test_renaming_one_of_two_names_of_an_inode_onto_the_other_does_nothing(place: Path) -> None:
    (place / "a").write_text("1")
    os.link(place / "a", place / "b")
    (place / "a").rename(place / "b")
    assert sorted(os.listdir(place)) == ["a", "b"]


def test_an_open_file_follows_its_name(place: Path) -> None:
    (place / "model").write_bytes(b"old" * 1000)
    descriptor = os.open(place / ".tmp", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(descriptor, 4096)
    os.pwrite(descriptor, b"A" * 4096, 0)
    (place / ".tmp").rename(place / "model")
    os.pwrite(descriptor, b"B", 4095)
    os.fchmod(descriptor, 0o640)
    os.fsync(descriptor)
    os.close(descriptor)
    assert (place / "model").read_bytes() == b"A" * 4095 + b"B"
    assert (place / "model").stat().st_mode & 0o777 == 0o640
    assert os.listdir(place) == ["model"]


def test_a_file_that_was_renamed_over_is_still_read_by_who_has_it_open(place: Path) -> None:
    (place / "latest").write_bytes(b"old" * 10_000)
    with open(place / "latest", "rb") as reader:
        (place / "new").write_bytes(b"new")
        (place / "new").rename(place / "latest")
        assert os.fstat(reader.fileno()).st_nlink == 0
        assert reader.read() == b"old" * 10_000
    assert (place / "latest").read_bytes() == b"new"


def test_a_reader_never_misses_a_pointer_that_is_replaced_all_the_time(place: Path) -> None:
    """S-rename."""
    pointer = place / "latest"
    pointer.write_text("0" * 4000)
    stop = threading.Event()
    bad: list[str] = []

    def read() -> None:
        while not stop.is_set():
            try:
                content = pointer.read_text()
            except OSError as why:
                bad.append(str(why))
            else:
                if len(content) != 4000 or len(set(content)) != 1:
                    bad.append(content[:10])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(150):
            (place / "latest.tmp").write_text(str(number % 10) * 4000)
            (place / "latest.tmp").rename(pointer)
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert bad == []


def test_of_ranks_that_rename_the_same_directory_one_wins(place: Path) -> None:
    (place / "tmp-checkpoint").mkdir()
    (place / "tmp-checkpoint" / "w").write_text("1")

    def finish(_: int) -> int:
        return errno_of(os.rename, place / "tmp-checkpoint", place / "checkpoint-1")

    with ThreadPoolExecutor(8) as ranks:
        answers = list(ranks.map(finish, range(8)))
    assert sorted(answers) == [0] + [errno.ENOENT] * 7
    assert (place / "checkpoint-1" / "w").read_text() == "1"


def test_a_step_directory_is_finished_by_two_renames_with_files_open_inside(place: Path) -> None:
    inner = place / "1.tmp" / "default.tmp" / "d"
    inner.mkdir(parents=True)
    with open(inner / "x", "w+b") as file:
        file.write(b"a" * 9000)
        file.flush()
        (place / "1.tmp" / "default.tmp").rename(place / "1.tmp" / "default")
        (place / "1.tmp").rename(place / "1")
        file.write(b"b")
    assert (place / "1" / "default" / "d" / "x").stat().st_size == 9001
    assert os.listdir(place) == ["1"]


def test_a_file_from_another_filesystem_cannot_be_renamed_in(on_mount: Path, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert errno_of(os.rename, tmp_path / "x", on_mount / "x") == errno.EXDEV
    assert errno_of(os.link, tmp_path / "x", on_mount / "x") == errno.EXDEV
