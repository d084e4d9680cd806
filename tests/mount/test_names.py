"""Names and directories."""

from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.support.system import errno_of

if TYPE_CHECKING:
    from pathlib import Path

ODD_NAMES = [
    b"\xff\xfe\x80",
    b"caf\xe9",
    "café".encode(),
    "cafe\u0301".encode(),
    b"new\nline",
    b" spaces ",
    b"-dash",
    b"back\\slash",
    b"\x01",
    b"...",
    b"x" * 255,
    "й".encode() * 127,
]


def test_a_name_is_kept_byte_for_byte(place: Path) -> None:
    """S-names."""
    directory = os.fsencode(place)
    for name in ODD_NAMES:
        with open(os.path.join(directory, name), "wb") as file:
            file.write(name)
    assert sorted(os.listdir(directory)) == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        with open(os.path.join(directory, name), "rb") as file:
            assert file.read() == name
        os.rename(os.path.join(directory, name), os.path.join(directory, b"moved"))
        os.unlink(os.path.join(directory, b"moved"))
    assert os.listdir(directory) == []


def test_upper_and_lower_case_are_different_names(place: Path) -> None:
    (place / "a").write_text("lower")
    (place / "A").write_text("upper")
    assert (place / "a").read_text() == "lower"


@pytest.mark.parametrize("length", [256, 1025])
def test_a_longer_name_than_255_bytes_is_refused_by_every_call(place: Path, length: int) -> None:
    """S-names."""
    long = place / ("n" * length)
    (place / "a").touch()
    assert errno_of(os.open, long, os.O_CREAT | os.O_WRONLY) == errno.ENAMETOOLONG
    assert errno_of(os.mkdir, long) == errno.ENAMETOOLONG
    assert errno_of(os.mkfifo, long) == errno.ENAMETOOLONG
    assert errno_of(os.symlink, "a", long) == errno.ENAMETOOLONG
    assert errno_of(os.link, place / "a", long) == errno.ENAMETOOLONG
    assert errno_of(os.rename, place / "a", long) == errno.ENAMETOOLONG
    assert errno_of(os.rename, long, place / "b") == errno.ENAMETOOLONG
    assert errno_of(os.stat, long) == errno.ENAMETOOLONG
    assert errno_of(os.unlink, long) == errno.ENAMETOOLONG
    assert errno_of(os.rmdir, long) == errno.ENAMETOOLONG
    assert os.listdir(place) == ["a"]


def test_what_cannot_be_done_with_a_name_says_why(place: Path) -> None:
    (place / "file").write_text("x")
    (place / "full").mkdir()
    (place / "full" / "x").touch()
    (place / "dangling").symlink_to("nowhere")
    creating = os.O_CREAT | os.O_WRONLY
    assert errno_of(os.stat, place / "missing") == errno.ENOENT
    assert errno_of(os.open, place / "missing" / "x", creating) == errno.ENOENT
    assert errno_of(os.open, place / "file" / "x", creating) == errno.ENOTDIR
    assert errno_of(os.mkdir, place / "file") == errno.EEXIST
    assert errno_of(os.mkdir, place / "dangling") == errno.EEXIST
    assert errno_of(os.symlink, "x", place / "full") == errno.EEXIST
    assert errno_of(os.rmdir, place / "full") == errno.ENOTEMPTY
    assert errno_of(os.rmdir, place / "file") == errno.ENOTDIR
    assert errno_of(os.rmdir, place / "missing") == errno.ENOENT
    assert errno_of(os.rmdir, f"{place}/full/.") == errno.EINVAL
    assert errno_of(os.unlink, place / "full") == errno.EISDIR
    assert errno_of(os.unlink, place / "missing") == errno.ENOENT
    assert errno_of(os.open, place / "full", os.O_WRONLY) == errno.EISDIR
    assert errno_of(os.truncate, place / "full", 0) == errno.EISDIR
    assert errno_of(os.open, place / "file", os.O_RDONLY | os.O_DIRECTORY) == errno.ENOTDIR
    assert errno_of(os.open, place / "dangling", os.O_RDONLY | os.O_NOFOLLOW) == errno.ELOOP
    assert errno_of(os.scandir, place / "file") == errno.ENOTDIR
    assert sorted(os.listdir(place)) == ["dangling", "file", "full"]


def test_a_name_that_was_missing_is_there_as_soon_as_it_is_made(place: Path) -> None:
    for number in range(20):
        path = place / str(number)
        assert not path.exists()
        path.touch()
        assert path.exists()
        path.unlink()
        assert not path.exists()


def test_a_directory_counts_its_subdirectories_as_links(place: Path) -> None:
    assert place.stat().st_nlink == 2
    (place / "a").mkdir()
    (place / "b").mkdir()
    (place / "file").touch()
    assert place.stat().st_nlink == 4
    (place / "a").rename(place / "b" / "a")
    assert (place.stat().st_nlink, (place / "b").stat().st_nlink) == (3, 3)
    shutil.rmtree(place / "b")
    assert place.stat().st_nlink == 2


def test_dot_dot_follows_a_moved_directory(place: Path) -> None:
    (place / "a" / "child").mkdir(parents=True)
    (place / "b").mkdir()
    (place / "a" / "child").rename(place / "b" / "child")
    assert os.stat(f"{place}/b/child/..").st_ino == (place / "b").stat().st_ino


def test_a_tree_may_be_deeper_than_a_path_is_long(place: Path) -> None:
    name = "d" * 100
    descriptors = [os.open(place, os.O_RDONLY)]
    for _ in range(50):
        os.mkdir(name, dir_fd=descriptors[-1])
        descriptors.append(os.open(name, os.O_RDONLY, dir_fd=descriptors[-1]))
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=descriptors[-1]))
    assert os.listdir(descriptors[-1]) == ["leaf"]
    os.unlink("leaf", dir_fd=descriptors[-1])
    for descriptor in reversed(descriptors[:-1]):
        os.rmdir(name, dir_fd=descriptor)
    for descriptor in descriptors:
        os.close(descriptor)
    assert os.listdir(place) == []


def test_an_open_directory_is_used_under_its_new_name_and_refuses_entries_once_removed(place: Path) -> None:
    (place / "before").mkdir()
    directory = os.open(place / "before", os.O_RDONLY)
    try:
        (place / "before").rename(place / "after")
        os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
        assert (place / "after" / "x").exists()
        os.unlink("x", dir_fd=directory)
        (place / "after").rmdir()
        assert os.listdir(directory) == []
        assert os.fstat(directory).st_nlink == 0
        assert errno_of(os.open, "x", os.O_CREAT | os.O_WRONLY, dir_fd=directory) == errno.ENOENT
        assert errno_of(os.mkdir, "x", dir_fd=directory) == errno.ENOENT
    finally:
        os.close(directory)


def test_ranks_that_make_the_same_directories_at_once_all_succeed(place: Path) -> None:
    def make(_: int) -> None:
        os.makedirs(place / "out" / "checkpoint-1" / "global_step1", exist_ok=True)

    with ThreadPoolExecutor(8) as ranks:
        list(ranks.map(make, range(32)))
    assert (place / "out" / "checkpoint-1" / "global_step1").is_dir()


def test_of_many_exclusive_creations_one_succeeds(place: Path) -> None:
    def create(_: int) -> int:
        return errno_of(lambda: os.close(os.open(place / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY)))

    with ThreadPoolExecutor(8) as ranks:
        answers = list(ranks.map(create, range(16)))
    assert sorted(answers) == [0] + [errno.EEXIST] * 15


def test_a_file_made_by_two_at_once_is_one_file(place: Path) -> None:
    def append(number: int) -> None:
        descriptor = os.open(place / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b"%02d\n" % number)
        os.close(descriptor)

    with ThreadPoolExecutor(8) as ranks:
        list(ranks.map(append, range(16)))
    assert sorted((place / "log").read_text().split()) == [f"{number:02d}" for number in range(16)]
