"""Hard and symbolic links."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from tests.support.system import errno_of

if TYPE_CHECKING:
    from pathlib import Path


def test_names_of_one_inode_share_content_and_attributes(place: Path) -> None:
    """S-hard-links."""
    (place / "last").write_bytes(b"1" * 5000)
    os.link(place / "last", place / "step-1")
    one, other = (place / "last").stat(), (place / "step-1").stat()
    assert (one.st_ino, one.st_nlink) == (other.st_ino, 2)
    with open(place / "step-1", "r+b") as file:
        file.write(b"22")
    (place / "last").chmod(0o600)
    assert (place / "last").read_bytes()[:3] == b"221"
    assert (place / "step-1").stat().st_mode & 0o777 == 0o600
    (place / "last").unlink()
    assert (place / "step-1").stat().st_nlink == 1
    assert (place / "step-1").read_bytes() == b"22" + b"1" * 4998


def test_replacing_one_name_leaves_the_other_with_the_content(place: Path) -> None:
    (place / "best").write_text("best")
    os.link(place / "best", place / "kept")
    (place / "new").write_text("new")
    (place / "new").rename(place / "best")
    assert ((place / "kept").read_text(), (place / "kept").stat().st_nlink) == ("best", 1)


def test_truncating_by_one_name_truncates_the_other(place: Path) -> None:
    (place / "a").write_bytes(b"x" * 100_000)
    os.link(place / "a", place / "b")
    (place / "a").write_bytes(b"y")
    assert (place / "b").read_bytes() == b"y"


def test_what_cannot_be_linked_says_why(place: Path) -> None:
    (place / "a").touch()
    (place / "b").touch()
    (place / "d").mkdir()
    assert errno_of(os.link, place / "a", place / "b") == errno.EEXIST
    assert errno_of(os.link, place / "d", place / "e") == errno.EPERM
    assert errno_of(os.link, place / "missing", place / "e") == errno.ENOENT


def test_a_removed_file_cannot_be_linked_again(place: Path) -> None:
    with open(place / "a", "wb") as file:
        (place / "a").unlink()
        descriptors = os.open("/proc/self/fd", os.O_RDONLY)  # without it Python does not follow the link to the file
        number = errno_of(os.link, str(file.fileno()), place / "b", src_dir_fd=descriptors)
        os.close(descriptors)
    assert number == errno.ENOENT


def test_a_symbolic_link_can_have_hard_links(place: Path) -> None:
    (place / "l").symlink_to("target")
    os.link(place / "l", place / "m", follow_symlinks=False)
    assert os.readlink(place / "m") == "target"
    assert (place / "l").lstat().st_nlink == 2


def test_a_target_is_kept_verbatim_up_to_4095_bytes(place: Path) -> None:
    """S-symlinks."""
    for number, target in enumerate([b"x", b"../../blobs/h", b"/abs/", b"caf\xe9\n", b"y" * 4095]):
        link = os.path.join(os.fsencode(place), b"%d" % number)
        os.symlink(target, link)
        assert os.readlink(link) == target
        found = os.lstat(link)
        assert (found.st_size, stat.S_IFMT(found.st_mode), found.st_mode & 0o777) == (len(target), stat.S_IFLNK, 0o777)
    assert errno_of(os.symlink, "z" * 4096, place / "long") == errno.ENAMETOOLONG
    assert errno_of(os.symlink, "", place / "empty") == errno.ENOENT


def test_links_are_followed_and_loops_end(place: Path) -> None:
    (place / "blobs").mkdir()
    (place / "snapshots" / "r").mkdir(parents=True)
    (place / "blobs" / "h").write_bytes(b"w" * 99)
    (place / "snapshots" / "r" / "m").symlink_to("../../blobs/h")
    assert (place / "snapshots" / "r" / "m").read_bytes() == b"w" * 99
    (place / "one").symlink_to("two")
    (place / "two").symlink_to("one")
    assert errno_of(os.stat, place / "one") == errno.ELOOP
    assert errno_of(os.readlink, place / "blobs") == errno.EINVAL


def test_writing_through_a_dangling_link_makes_its_target_except_exclusively(place: Path) -> None:
    (place / "l").symlink_to("target")
    assert errno_of(os.open, place / "l", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == errno.EEXIST
    (place / "l").write_text("x")
    assert (place / "target").read_text() == "x"


def test_a_link_to_the_newest_step_is_replaced_by_rename(place: Path) -> None:
    (place / "step-1").mkdir()
    (place / "latest").symlink_to("step-1")
    (place / ".latest").symlink_to("step-2")
    (place / ".latest").rename(place / "latest")
    assert os.readlink(place / "latest") == "step-2"
    assert (place / "step-1").is_dir()
    (place / "latest").unlink()
    assert os.listdir(place) == ["step-1"]


def test_a_links_own_times_and_owner_can_be_set(place: Path) -> None:
    (place / "target").touch()
    before = (place / "target").stat()
    (place / "l").symlink_to("target")
    os.utime(place / "l", ns=(10**9 + 1, 2 * 10**9 + 2), follow_symlinks=False)
    assert (place / "l").lstat().st_mtime_ns == 2 * 10**9 + 2
    os.lchown(place / "l", os.getuid(), os.getgid())
    assert (place / "target").stat().st_mtime_ns == before.st_mtime_ns
