"""Timestamps, in nanoseconds, and what changes them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounted import MountedVolume

Times = tuple[int, int]


def changed_and_modified(path: Path) -> Times:
    found = path.lstat()
    return found.st_ctime_ns, found.st_mtime_ns


def in_the_past(path: Path) -> None:
    os.utime(path, ns=(10**18, 10**18))


@pytest.mark.parametrize("moment_ns", [0, 1, 999_999_999, 1_700_000_000_123_456_789, 2**32 * 10**9 + 7])
def test_times_are_kept_to_the_nanosecond(place: Path, moment_ns: int) -> None:
    """S-times."""
    (place / "f").touch()
    os.utime(place / "f", ns=(moment_ns, moment_ns + 1))
    found = (place / "f").stat()
    assert (found.st_atime_ns, found.st_mtime_ns) == (moment_ns, moment_ns + 1)


def test_a_new_file_has_the_time_of_now(place: Path) -> None:
    before_ns = time.time_ns() - 20 * 10**6  # the kernel's own clock ticks every few ms
    (place / "f").touch()
    found = (place / "f").stat()
    for moment_ns in (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns):
        assert before_ns <= moment_ns <= time.time_ns()


@pytest.mark.parametrize(
    "change",
    [
        lambda d: (d / "new").touch(),
        lambda d: (d / "new").mkdir(),
        lambda d: (d / "new").symlink_to("x"),
        lambda d: os.link(d / "f", d / "new"),
        lambda d: os.mkfifo(d / "new"),
        lambda d: (d / "f").unlink(),
        lambda d: (d / "sub").rmdir(),
        lambda d: (d / "f").rename(d / "g"),
        lambda d: (d / "f").rename(d / "h"),
    ],
    ids=["create", "mkdir", "symlink", "link", "mkfifo", "unlink", "rmdir", "rename", "rename-over"],
)
def test_a_change_of_names_sets_the_directorys_times(place: Path, change: Callable[[Path], object]) -> None:
    for name in ("f", "h"):
        (place / name).touch()
    (place / "sub").mkdir()
    in_the_past(place)
    ctime_ns, _ = changed_and_modified(place)
    change(place)
    assert changed_and_modified(place)[0] > ctime_ns
    assert changed_and_modified(place)[1] > 10**18


def test_moving_between_directories_sets_the_times_of_both(place: Path) -> None:
    for name in ("a", "b"):
        (place / name).mkdir()
    (place / "a" / "f").touch()
    in_the_past(place / "a")
    in_the_past(place / "b")
    (place / "a" / "f").rename(place / "b" / "f")
    assert (place / "a").stat().st_mtime_ns > 10**18
    assert (place / "b").stat().st_mtime_ns > 10**18


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.chmod(0o600),
        lambda f: os.chown(f, os.getuid(), os.getgid()),
        lambda f: os.link(f, f.with_name("second")),
        lambda f: os.setxattr(f, "user.step", b"1"),
        lambda f: os.removexattr(f, "user.there"),
        lambda f: os.utime(f, ns=(5, 10**18)),
    ],
    ids=["chmod", "chown", "link", "setxattr", "removexattr", "utime"],
)
@pytest.mark.parametrize("is_open", [False, True])
def test_a_change_of_attributes_sets_ctime_only(place: Path, change: Callable[[Path], object], is_open: bool) -> None:
    file = place / "f"
    file.touch()
    os.setxattr(file, "user.there", b"")
    in_the_past(file)
    ctime_ns, _ = changed_and_modified(file)
    with open(file if is_open else os.devnull, "rb"):
        time.sleep(0.005)  # native ctime moves with the kernel's clock tick
        change(file)
        assert changed_and_modified(file)[0] > ctime_ns
        assert changed_and_modified(file)[1] == 10**18


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.write_bytes(b"new"),
        lambda f: f.write_bytes(b""),
        lambda f: os.truncate(f, 2),
        lambda f: os.truncate(f, 20),
        lambda f: f.open("ab").write(b"x"),
        lambda f: f.open("r+b").write(b"x"),
    ],
    ids=["rewrite", "empty", "shorten", "lengthen", "append", "edit"],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_change_of_content_sets_mtime_and_ctime(place: Path, change: Callable[[Path], object]) -> None:
    """S-times."""
    file = place / "f"
    file.write_bytes(b"content")
    in_the_past(file)
    ctime_ns, _ = changed_and_modified(file)
    change(file)
    assert changed_and_modified(file)[0] > ctime_ns
    assert changed_and_modified(file)[1] > 10**18


def test_truncating_an_empty_file_on_opening_sets_its_times(place: Path) -> None:
    file = place / "f"
    file.touch()
    in_the_past(file)
    os.close(os.open(file, os.O_WRONLY | os.O_TRUNC))
    assert file.stat().st_mtime_ns > 10**18


def test_opening_for_writing_and_closing_changes_nothing(place: Path) -> None:
    file = place / "f"
    file.write_bytes(b"x")
    in_the_past(file)
    times = changed_and_modified(file)
    os.close(os.open(file, os.O_RDWR))
    assert changed_and_modified(file) == times


def test_reading_sets_atime_once_after_a_change(place: Path) -> None:
    """S-atime."""
    file = place / "f"
    file.write_bytes(b"x")
    os.utime(file, ns=(1, 2))
    file.read_bytes()
    assert file.stat().st_atime_ns > 2
    assert file.stat().st_mtime_ns == 2
    atime_ns = file.stat().st_atime_ns
    file.read_bytes()
    assert file.stat().st_atime_ns == atime_ns  # relatime


def test_times_stay_as_they_were_through_close_and_fsync(place: Path) -> None:
    with open(place / "f", "wb") as file:
        file.write(b"x" * 100_000)
        file.flush()
        times = changed_and_modified(place / "f")
        os.fsync(file.fileno())
        assert changed_and_modified(place / "f") == times
    assert changed_and_modified(place / "f") == times
    descriptor = os.open(place / "f", os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    assert changed_and_modified(place / "f") == times


def test_times_set_while_writing_are_not_overwritten_at_close(place: Path) -> None:
    with open(place / "f", "wb") as file:
        file.write(b"x" * 3_000_000)
        file.flush()
        os.utime(file.fileno(), ns=(3, 4))
    found = (place / "f").stat()
    assert (found.st_atime_ns, found.st_mtime_ns) == (3, 4)


def test_copying_takes_the_times_along(place: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 200_000)
    os.utime(source, ns=(123_456_789_012_345_678, 234_567_890_123_456_789))
    source.chmod(0o640)
    shutil.copy2(source, place / "copy")
    found = (place / "copy").stat()
    assert (found.st_mtime_ns, found.st_mode & 0o777) == (234_567_890_123_456_789, 0o640)
    assert (place / "copy").read_bytes() == source.read_bytes()


def test_times_survive_a_remount(mounted: MountedVolume) -> None:
    """S-times."""
    file = mounted.mountpoint / "f"
    file.write_bytes(b"x" * 5000)
    os.utime(file, ns=(3, 4))
    (mounted.mountpoint / "d").mkdir()
    os.utime(mounted.mountpoint / "d", ns=(5, 6))
    times = [changed_and_modified(mounted.mountpoint / name) for name in ("f", "d")]
    mounted.remount()
    assert [changed_and_modified(mounted.mountpoint / name) for name in ("f", "d")] == times
    assert times[0][1] == 4
