"""Modes, owners and other users. Access is decided by the kernel, from what the daemon says of owner and mode."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounted import MountedVolume
from tests.support.system import NOBODY, as_user, errno_of

GROUP = 4242


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def creates(name: str, permissions: int = 0o666) -> Callable[[], None]:
    return lambda: os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, permissions))


def reads(name: str) -> Callable[[], None]:
    return lambda: os.close(os.open(name, os.O_RDONLY))


def writes(name: str) -> Callable[[], None]:
    def write() -> None:
        descriptor = os.open(name, os.O_WRONLY)
        os.write(descriptor, b"x")
        os.close(descriptor)

    return write


def test_a_new_file_has_the_mode_asked_for_less_the_umask(place: Path) -> None:
    before = os.umask(0o027)
    try:
        for number, asked in enumerate([0o666, 0o600, 0o444, 0o777, 0]):
            os.close(os.open(place / f"f{number}", os.O_CREAT | os.O_WRONLY, asked))
            assert mode(place / f"f{number}") == asked & ~0o027
        os.mkdir(place / "d", 0o777)
        assert mode(place / "d") == 0o750
        os.mkfifo(place / "p", 0o666)
        assert mode(place / "p") == 0o640
    finally:
        os.umask(before)


def test_access_is_checked_at_open_and_never_after(place: Path) -> None:
    descriptor = os.open(place / "ro", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444)
    os.write(descriptor, b"x" * 100)
    os.ftruncate(descriptor, 50)
    os.fchmod(descriptor, 0)
    os.write(descriptor, b"y")
    os.ftruncate(descriptor, 60)
    os.fsync(descriptor)
    assert os.fstat(descriptor).st_size == 60
    os.close(descriptor)


def test_a_file_that_may_only_be_read_is_copied_with_its_mode(place: Path) -> None:
    (place / "s").write_bytes(b"1" * 70_000)
    (place / "s").chmod(0o444)
    shutil.copy(place / "s", place / "s2")
    assert ((place / "s2").stat().st_size, mode(place / "s2")) == (70_000, 0o444)


def test_every_mode_bit_is_kept(place: Path) -> None:
    (place / "f").touch()
    for bits in (0o7777, 0o4755, 0o2755, 0o1644, 0):
        (place / "f").chmod(bits)
        assert mode(place / "f") == bits
    (place / "d").mkdir()
    (place / "d").chmod(0o3775)
    assert mode(place / "d") == 0o3775


@pytest.mark.root
def test_others_read_what_they_may_and_nothing_else(place: Path) -> None:
    """S-permissions."""
    (place / "public").write_text("hi")
    (place / "private").write_text("no")
    (place / "private").chmod(0o600)
    (place / "closed").mkdir(mode=0o700)
    (place / "closed" / "f").touch()
    assert as_user(place, reads("public")) == 0
    assert as_user(place, reads("private")) == errno.EACCES
    assert as_user(place, writes("public")) == errno.EACCES
    assert as_user(place, creates("evil")) == errno.EACCES
    assert as_user(place, lambda: os.unlink("public")) == errno.EACCES
    assert as_user(place, lambda: os.rename("public", "mine")) == errno.EACCES
    assert as_user(place, lambda: os.stat("closed/f")) == errno.EACCES
    assert as_user(place, lambda: os.chmod("public", 0o777)) == errno.EPERM
    assert as_user(place, lambda: os.chown("public", NOBODY, NOBODY)) == errno.EPERM
    assert as_user(place, lambda: os.utime("public", ns=(1, 1))) == errno.EPERM
    assert as_user(place, lambda: os.truncate("public", 0)) == errno.EACCES
    assert as_user(place, lambda: os.setxattr("public", "user.x", b"")) == errno.EACCES
    (place / "private").chmod(0o644)
    assert as_user(place, reads("private")) == 0
    assert (place / "public").read_text() == "hi"


@pytest.mark.root
def test_what_others_make_is_theirs(place: Path) -> None:
    place.chmod(0o777)

    def make() -> None:
        creates("f", 0o640)()
        os.mkdir("d", 0o750)
        os.symlink("f", "l")
        os.mkfifo("p")

    assert as_user(place, make, gid=GROUP) == 0
    for name in ("f", "d", "l", "p"):
        found = (place / name).lstat()
        assert (found.st_uid, found.st_gid) == (NOBODY, GROUP), name
    assert mode(place / "f") == 0o640


@pytest.mark.root
def test_supplementary_groups_count(place: Path) -> None:
    (place / "f").write_text("x")
    os.chown(place / "f", 0, GROUP)
    (place / "f").chmod(0o660)
    assert as_user(place, writes("f")) == errno.EACCES
    assert as_user(place, writes("f"), groups=(GROUP,)) == 0


@pytest.mark.root
def test_in_a_sticky_directory_only_owners_remove(place: Path) -> None:
    """S-permissions."""
    place.chmod(0o1777)
    (place / "roots").touch()
    (place / "roots").chmod(0o666)
    assert as_user(place, lambda: os.unlink("roots")) == errno.EPERM
    assert as_user(place, lambda: os.rename("roots", "x")) == errno.EPERM
    assert as_user(place, creates("mine")) == 0
    assert as_user(place, lambda: os.rename("mine", "still-mine")) == 0
    assert as_user(place, lambda: os.unlink("still-mine")) == 0


@pytest.mark.root
def test_a_setgid_directory_passes_its_group_on(place: Path) -> None:
    team = place / "team"
    team.mkdir()
    os.chown(team, 0, GROUP)
    team.chmod(0o2777)

    def make() -> None:
        creates("f")()
        os.mkdir("d")
        os.symlink("f", "l")

    assert as_user(team, make) == 0
    assert {(team / name).lstat().st_gid for name in ("f", "d", "l")} == {GROUP}
    assert mode(team / "d") & stat.S_ISGID
    assert not mode(team / "f") & stat.S_ISGID


def _write(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"y")


def _write_only(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, b"y")
    os.close(descriptor)


@pytest.mark.root
@pytest.mark.parametrize(
    "change",
    [_write, _write_only, lambda f: os.truncate(f, 1)],
    ids=["write", "write-only", "truncate"],
)
def test_a_change_by_another_user_takes_setuid_and_setgid_away(place: Path, change: Callable[[Path], None]) -> None:
    """S-setuid."""
    (place / "f").write_bytes(b"xxxx")
    (place / "f").chmod(0o6777)
    assert as_user(place, lambda: change(Path("f"))) == 0
    assert mode(place / "f") == 0o777


@pytest.mark.root
def test_a_change_of_owner_takes_setuid_and_setgid_away(place: Path) -> None:
    (place / "f").touch()
    (place / "f").chmod(0o6755)
    os.chown(place / "f", NOBODY, NOBODY)
    assert mode(place / "f") == 0o755
    found = (place / "f").stat()
    assert (found.st_uid, found.st_gid) == (NOBODY, NOBODY)
    os.chown(place / "f", -1, GROUP)
    assert ((place / "f").stat().st_uid, (place / "f").stat().st_gid) == (NOBODY, GROUP)


@pytest.mark.root
def test_setgid_of_a_group_one_is_not_in_is_dropped(place: Path) -> None:
    (place / "f").touch()
    os.chown(place / "f", NOBODY, GROUP)
    assert as_user(place, lambda: os.chmod("f", 0o2755)) == 0
    assert mode(place / "f") == 0o755
    assert as_user(place, lambda: os.chmod("f", 0o2755), groups=(GROUP,)) == 0
    assert mode(place / "f") == 0o2755


@pytest.mark.root
def test_owners_give_their_files_to_groups_they_are_in(place: Path) -> None:
    (place / "f").touch()
    os.chown(place / "f", NOBODY, NOBODY)
    assert as_user(place, lambda: os.chown("f", -1, GROUP)) == errno.EPERM
    assert as_user(place, lambda: os.chown("f", -1, GROUP), groups=(GROUP,)) == 0


@pytest.mark.root
@pytest.mark.parametrize(("option", "answer"), [("noallow_other", errno.EACCES), ("allow_other", 0)])
def test_other_users_are_let_in_by_an_option(volume: MountedVolume, option: str, answer: int) -> None:
    """S-allow-other."""
    volume.mount(option)
    (volume.mountpoint / "f").write_text("x")
    descriptor = os.open(volume.mountpoint, os.O_RDONLY)
    try:
        assert as_user(Path("/"), lambda: os.stat("f", dir_fd=descriptor)) == answer
    finally:
        os.close(descriptor)


def test_owner_group_and_umask_options_change_what_is_shown(volume: MountedVolume) -> None:
    """S-owner-options."""
    volume.mount("uid=1234,gid=4321,umask=027")
    file = volume.mountpoint / "f"
    file.write_text("x")
    file.chmod(0o600)
    assert (file.stat().st_uid, file.stat().st_gid, mode(file)) == (1234, 4321, 0o750)
    volume.remount()
    assert (file.stat().st_uid, mode(file)) == (os.getuid(), 0o600)


def test_on_a_read_only_mount_everything_is_read_and_nothing_changes(mounted: MountedVolume) -> None:
    """S-read-only."""
    file = mounted.mountpoint / "f"
    file.write_bytes(b"x" * 100_000)
    times = (file.stat().st_mtime_ns, file.stat().st_ctime_ns, file.stat().st_atime_ns)
    mounted.remount("ro")
    assert file.read_bytes() == b"x" * 100_000
    assert errno_of(os.open, file, os.O_WRONLY) == errno.EROFS
    assert errno_of(os.open, mounted.mountpoint / "new", os.O_WRONLY | os.O_CREAT) == errno.EROFS
    assert errno_of(os.unlink, file) == errno.EROFS
    assert errno_of(os.rename, file, mounted.mountpoint / "g") == errno.EROFS
    assert errno_of(os.mkdir, mounted.mountpoint / "d") == errno.EROFS
    assert errno_of(os.chmod, file, 0) == errno.EROFS
    assert errno_of(os.setxattr, file, "user.x", b"") == errno.EROFS
    assert (file.stat().st_mtime_ns, file.stat().st_ctime_ns, file.stat().st_atime_ns) == times
