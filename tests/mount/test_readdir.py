"""Listing directories, also while they change."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.mounted import MountedVolume


def make_files(directory: Path, count: int) -> list[str]:
    names = [f"shard-{number:05d}" for number in range(count)]
    for name in names:
        os.mknod(directory / name)
    return names


def test_entries_deleted_while_listing_are_each_seen_once(place: Path) -> None:
    names = make_files(place, 800)
    seen: list[str] = []
    with os.scandir(place) as entries:
        for entry in entries:
            seen.append(entry.name)
            os.unlink(entry.path)
    assert sorted(seen) == names
    assert os.listdir(place) == []


def test_entries_that_nobody_touches_are_seen_once_while_others_come_and_go(place: Path) -> None:
    """S-readdir."""
    names = make_files(place, 700)
    kept = set(names[::2])
    others = iter(names[1::2])
    seen: list[str] = []
    with os.scandir(place) as entries:
        for number, entry in enumerate(entries):
            seen.append(entry.name)
            other = next(others, None)
            if other is None:
                continue
            if number % 3 == 0:
                os.unlink(place / other)
            elif number % 3 == 1:
                os.rename(place / other, place / f"renamed-{number}")
            else:
                os.mknod(place / f"new-{number}")
    untouched = [name for name in seen if name in kept]
    assert sorted(untouched) == sorted(kept)


def test_a_loop_that_renames_what_it_lists_ends(place: Path) -> None:
    make_files(place, 400)
    with os.scandir(place) as entries:
        for count, entry in enumerate(entries):
            assert count < 5000
            if not entry.name.endswith(".done"):
                os.rename(entry.path, entry.path + ".done")
    assert len([name for name in os.listdir(place) if name.endswith(".done")]) == 400


def test_an_open_directory_lists_anew_from_its_start(place: Path) -> None:
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert os.listdir(directory) == []
        (place / "a").touch()
        assert os.listdir(directory) == ["a"]
        (place / "a").rename(place / "b")
        assert os.listdir(directory) == ["b"]
        (place / "b").unlink()
        assert os.listdir(directory) == []
    finally:
        os.close(directory)


def test_two_listings_of_one_directory_do_not_disturb_each_other(place: Path) -> None:
    names = make_files(place, 700)
    with os.scandir(place) as first, os.scandir(place) as second:
        interleaved = list(zip(first, second, strict=True))
    assert sorted(entry.name for entry, _ in interleaved) == names
    assert sorted(entry.name for _, entry in interleaved) == names


def test_a_listing_says_type_and_inode_as_stat_does(place: Path) -> None:
    (place / "file").touch()
    (place / "directory").mkdir()
    (place / "link").symlink_to("file")
    os.mkfifo(place / "fifo")
    with os.scandir(place) as entries:
        for entry in entries:
            path = place / entry.name
            assert entry.inode() == path.lstat().st_ino
            assert entry.is_dir(follow_symlinks=False) == (entry.name == "directory")
            assert entry.is_file(follow_symlinks=False) == (entry.name == "file")
            assert entry.is_symlink() == (entry.name == "link")


def test_a_listing_shows_the_attributes_of_now(place: Path) -> None:
    (place / "a").write_bytes(b"1")
    list(os.scandir(place))
    with open(place / "a", "ab") as file:
        file.write(b"23")
    os.chmod(place / "a", 0o600)
    (entry,) = os.scandir(place)
    assert (entry.stat().st_size, entry.stat().st_mode & 0o777) == (3, 0o600)


def test_a_directory_is_removed_while_a_file_of_it_is_open(place: Path) -> None:
    (place / "ck" / "deep").mkdir(parents=True)
    with open(place / "ck" / "deep" / "f", "wb") as file:
        shutil.rmtree(place / "ck")
        file.write(b"late")
    assert os.listdir(place) == []


def test_ranks_that_remove_a_directory_at_once_leave_nothing(place: Path) -> None:
    make_files(place, 300)

    def remove(_: int) -> None:
        shutil.rmtree(place, ignore_errors=True)

    with ThreadPoolExecutor(4) as ranks:
        list(ranks.map(remove, range(4)))
    assert not place.exists()


@pytest.mark.slow
def test_ten_thousand_files_are_listed_in_seconds(mounted: MountedVolume) -> None:
    directory = mounted.mountpoint / "many"
    directory.mkdir()
    make_files(directory, 10_000)
    mounted.remount()  # so that neither the kernel nor the daemon remembers one of them
    started_s = time.monotonic()
    listed = subprocess.run(
        ["ls", "-l", str(directory)], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    took_s = time.monotonic() - started_s
    assert len(listed) == 10_001  # and the line with the total
    assert took_s < 15, took_s  # 2 s is promised for a machine that does nothing else, which one that runs tests is not
