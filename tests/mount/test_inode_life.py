"""An inode and its bytes live as long as anybody can reach them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.mounted import MountedVolume


def test_a_removed_file_is_read_and_written_on(place: Path) -> None:
    """S-inode-life."""
    with open(place / "f", "w+b", buffering=0) as file:
        file.write(b"x" * 3_000_000)
        (place / "f").unlink()
        assert os.listdir(place) == []
        assert os.fstat(file.fileno()).st_nlink == 0
        file.write(b"more")
        os.fchmod(file.fileno(), 0o600)
        os.setxattr(file.fileno(), "user.x", b"1")
        os.fsync(file.fileno())
        assert os.getxattr(file.fileno(), "user.x") == b"1"
        assert os.pread(file.fileno(), 10, 2_999_998) == b"xxmore"
        os.ftruncate(file.fileno(), 5)
        os.utime(file.fileno(), ns=(1, 2))
        found = os.fstat(file.fileno())
        assert (found.st_size, found.st_mtime_ns, found.st_mode & 0o777) == (5, 2, 0o600)


def test_a_removed_file_is_opened_again_through_its_descriptor(place: Path) -> None:
    with open(place / "f", "w+b", buffering=0) as file:
        file.write(b"content")
        (place / "f").unlink()
        path = f"/proc/self/fd/{file.fileno()}"
        with open(path, "r+b", buffering=0) as again:
            assert again.read() == b"content"
            again.write(b" and more")
        assert os.pread(file.fileno(), 100, 0) == b"content and more"
        with open(path, "wb", buffering=0) as again:
            again.write(b"anew")
        assert os.pread(file.fileno(), 100, 0) == b"anew"


def test_a_new_file_of_the_same_name_is_another_file(place: Path) -> None:
    (place / "f").write_bytes(b"old")
    with open(place / "f", "rb") as old:
        (place / "f").unlink()
        (place / "f").write_bytes(b"new")
        assert (place / "f").stat().st_ino != os.fstat(old.fileno()).st_ino
        assert old.read() == b"old"
    assert (place / "f").read_bytes() == b"new"


def test_a_file_opened_by_path_only_is_still_there_after_its_removal(place: Path) -> None:
    """S-inode-life."""
    (place / "f").write_bytes(b"x" * 5000)
    handle = os.open(place / "f", os.O_PATH)
    (place / "f").unlink()
    with open(f"/proc/self/fd/{handle}", "rb") as file:
        assert file.read() == b"x" * 5000
    os.close(handle)


def test_one_of_two_names_goes_while_the_file_is_open(place: Path) -> None:
    with open(place / "a", "wb") as file:
        os.link(place / "a", place / "b")
        (place / "a").unlink()
        file.write(b"late")
    assert (place / "b").read_bytes() == b"late"
    assert (place / "b").stat().st_nlink == 1


def test_steps_that_come_and_go_quickly_leave_the_last(place: Path) -> None:
    for step in range(5):
        (place / f"s{step}.tmp").mkdir()
        (place / f"s{step}.tmp" / "w").write_bytes(os.urandom(1 << 20))
        (place / f"s{step}.tmp").rename(place / f"s{step}")
        if step:
            shutil.rmtree(place / f"s{step - 1}")
    assert os.listdir(place) == ["s4"]
    assert (place / "s4" / "w").stat().st_size == 1 << 20


def test_inode_numbers_stay_the_same_after_a_remount(mounted: MountedVolume) -> None:
    """S-inode-life."""
    (mounted.mountpoint / "d").mkdir()
    (mounted.mountpoint / "d" / "f").write_text("x")
    paths = [mounted.mountpoint, mounted.mountpoint / "d", mounted.mountpoint / "d" / "f"]
    numbers = [path.stat().st_ino for path in paths]
    mounted.remount()
    assert [path.stat().st_ino for path in paths] == numbers
