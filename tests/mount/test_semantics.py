"""Promises of docs/semantics.md that no other test of this directory shows: most are what ckptfs does not do, and how it says so."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import select
import shutil
import stat
from typing import TYPE_CHECKING

import pytest

from tests.support.system import errno_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.mounted import MountedVolume

_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_IN_ALL_EVENTS = 0xFFF
_FS_IOC_GETFLAGS = 0x80086601

_libc = ctypes.CDLL(None, use_errno=True)


def call(function: Callable[..., int], *arguments: object) -> None:
    """Call a function of the C library. Raises ``OSError``."""
    if function(*arguments) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def versions_kept(volume: MountedVolume, path: Path) -> str:
    return volume.ckptfs("previous", path, "--json").stdout


@pytest.mark.parametrize("mode", [0, _KEEP_SIZE, _KEEP_SIZE | _PUNCH_HOLE], ids=["extend", "keep-size", "punch"])
def test_fallocate_is_not_supported(on_mount: Path, mode: int) -> None:
    """S-no-fallocate."""
    with open(on_mount / "f", "w+b") as file:
        offset, length = ctypes.c_longlong(0), ctypes.c_longlong(4096)
        assert errno_of(call, _libc.fallocate, file.fileno(), mode, offset, length) == errno.EOPNOTSUPP


def test_sync_and_syncfs_succeed_and_seal_nothing_that_is_open(on_mount: Path) -> None:
    """S-sync."""
    with open(on_mount / "f", "w+b", buffering=0) as file:
        file.write(b"x")
        os.sync()
        call(_libc.syncfs, file.fileno())
        assert os.getxattr(on_mount / "f", "user.ckptfs.state") == b"landing"
        os.fsync(file.fileno())
        assert os.getxattr(on_mount / "f", "user.ckptfs.state") == b"sealed"


def test_file_flags_are_not_supported(on_mount: Path) -> None:
    """S-no-file-flags."""
    (on_mount / "f").touch()
    with open(on_mount / "f", "rb") as file:
        assert errno_of(fcntl.ioctl, file.fileno(), _FS_IOC_GETFLAGS, bytes(8)) in {errno.ENOTTY, errno.EOPNOTSUPP}


def test_a_shared_mapping_of_an_uncached_descriptor_is_refused(on_mount: Path) -> None:
    """S-mmap-uncached: a private one, and a shared one of a descriptor that may read through the cache, work."""
    (on_mount / "f").write_bytes(b"x" * 8192)
    direct = os.open(on_mount / "f", os.O_RDONLY | os.O_DIRECT)
    cached = os.open(on_mount / "f", os.O_RDWR | os.O_DIRECT)
    try:

        def share(descriptor: int) -> None:
            mmap.mmap(descriptor, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ).close()

        assert errno_of(share, direct) == errno.ENODEV
        assert errno_of(share, cached) == 0
        with mmap.mmap(direct, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
            assert mapped[:2] == b"xx"
    finally:
        os.close(direct)
        os.close(cached)


def test_blocks_are_those_of_the_size(on_mount: Path) -> None:
    """S-blocks."""
    with open(on_mount / "f", "wb") as file:
        file.truncate(10 << 20)
    (on_mount / "g").write_bytes(b"x")
    assert (on_mount / "f").stat().st_blocks == (10 << 20) // 512
    assert (on_mount / "g").stat().st_blocks == 1


def test_reading_what_the_kernel_has_cached_sets_no_atime(on_mount: Path) -> None:
    """S-atime."""
    (on_mount / "f").write_bytes(b"x" * 5000)
    (on_mount / "f").read_bytes()
    os.utime(on_mount / "f", ns=(1, 10**18))
    (on_mount / "f").read_bytes()
    assert (on_mount / "f").stat().st_atime_ns == 1


def test_a_write_takes_setuid_away_from_root_too(on_mount: Path) -> None:
    """S-setuid."""
    (on_mount / "f").write_bytes(b"x")
    (on_mount / "f").chmod(0o4755)
    descriptor = os.open(on_mount / "f", os.O_WRONLY)
    os.write(descriptor, b"y")
    os.close(descriptor)
    assert stat.S_IMODE((on_mount / "f").stat().st_mode) == 0o755


def test_an_extended_attribute_has_up_to_64_kib(on_mount: Path) -> None:
    """S-xattrs."""
    (on_mount / "f").touch()
    os.setxattr(on_mount / "f", "user.large", b"x" * 65536)
    assert len(os.getxattr(on_mount / "f", "user.large")) == 65536
    assert errno_of(os.setxattr, on_mount / "f", "user.larger", b"x" * 65537) == errno.E2BIG


def test_truncating_on_opening_keeps_the_content_unless_the_file_is_open(mounted: MountedVolume) -> None:
    """S-o-trunc."""
    alone, shared = mounted.mountpoint / "alone", mounted.mountpoint / "shared"
    for path in (alone, shared):
        path.write_text("one")
    with open(shared, "rb"):
        for path in (alone, shared):
            path.write_text("two")
    assert '"size": 3' in versions_kept(mounted, alone)
    assert '"previous": []' in versions_kept(mounted, shared)


def test_what_an_admin_command_changes_is_seen_at_once_and_announced_to_no_watcher(mounted: MountedVolume) -> None:
    """S-inotify, S-visible."""
    root = mounted.mountpoint
    (root / "f").write_text("x")
    (root / "f").unlink()
    assert not (root / "f").exists()
    watcher = _libc.inotify_init1(os.O_NONBLOCK)
    try:
        call(_libc.inotify_add_watch, watcher, os.fsencode(root), _IN_ALL_EVENTS)
        mounted.ckptfs("undelete", root / "f")
        assert not select.select([watcher], [], [], 0)[0]
        assert (root / "f").read_text() == "x"
    finally:
        os.close(watcher)


def test_a_device_error_is_told_again_until_the_file_is_written_anew(volume: MountedVolume) -> None:
    """S-errors-stick."""
    volume.mount(fault="lane.write=EIO")
    path = volume.mountpoint / "f"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:
        assert os.write(descriptor, b"x" * 1000) == 1000  # taken into memory
        assert errno_of(os.fsync, descriptor) == errno.EIO
        assert errno_of(os.fsync, descriptor) == errno.EIO
        assert errno_of(os.write, descriptor, b"y") == errno.EIO
        assert errno_of(os.rename, path, volume.mountpoint / "g") == errno.EIO
    finally:
        assert errno_of(os.close, descriptor) == errno.EIO
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        assert os.write(descriptor, b"anew") == 4  # a new generation starts without the error
        assert errno_of(os.fsync, descriptor) == errno.EIO  # the device still fails
    finally:
        errno_of(os.close, descriptor)
    assert "EIO" in volume.log()
    path.unlink()


def test_bytes_that_the_stripe_lost_are_an_error_and_not_a_hole(mounted: MountedVolume) -> None:
    """S-damage."""
    (mounted.mountpoint / "f").write_bytes(b"x" * 100_000)
    mounted.umount()
    (lane,) = (lane for stripe in mounted.stripes for lane in (stripe / "images").iterdir())
    os.truncate(lane, 50_000)
    mounted.mount()
    assert errno_of((mounted.mountpoint / "f").read_bytes) == errno.EIO
    assert lane.name.partition(".")[0] in mounted.log()


def test_the_reserve_is_for_small_files_only(volume: MountedVolume) -> None:
    """S-reserve, S-statfs, S-enospc."""
    settings = (volume.directory / "volume.toml").read_text()
    free = shutil.disk_usage(volume.directory).free
    (volume.directory / "volume.toml").write_text(
        settings.replace('# reserve = "1GiB"', f"reserve = {free + free // 5}")
    )
    volume.mount()
    assert os.statvfs(volume.mountpoint).f_bavail == 0
    (volume.mountpoint / "latest").write_bytes(b"x" * 65_536)
    descriptor = os.open(volume.mountpoint / "large", os.O_CREAT | os.O_WRONLY)
    try:
        assert errno_of(os.write, descriptor, b"x" * 65_537) == errno.ENOSPC
    finally:
        os.close(descriptor)  # raises nothing: the write has said it
    assert (volume.mountpoint / "large").stat().st_size == 0
    assert (volume.mountpoint / "latest").read_bytes() == b"x" * 65_536


def test_more_files_are_open_than_the_soft_limit_of_descriptors_allows(volume: MountedVolume) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(128, soft), hard))
    try:
        volume.mount()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    descriptors = [os.open(volume.mountpoint / str(number), os.O_CREAT | os.O_WRONLY) for number in range(200)]
    try:
        for descriptor in descriptors:
            os.write(descriptor, b"x")
        os.fsync(descriptors[-1])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@pytest.mark.parametrize("lost", ["missing", "empty", "overwritten"])
def test_a_volume_that_lost_its_metadata_is_refused_and_its_lanes_are_left_alone(
    mounted: MountedVolume, lost: str
) -> None:
    (mounted.mountpoint / "f").write_bytes(b"x" * 100_000)
    mounted.umount()
    database = mounted.directory / "metadata.db"
    if lost == "missing":
        database.unlink()
    elif lost == "empty":
        os.truncate(database, 0)
    else:
        with open(database, "r+b") as file:
            file.seek(4096)
            file.write(b"\xa5" * (database.stat().st_size - 4096))
    done = mounted.ckptfs("mount", mounted.directory, mounted.mountpoint, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (5, False)
    assert "metadata.db" in done.stderr
    assert mounted.ckptfs("fsck", mounted.directory, check=False).returncode == 5
    (lane,) = (lane for stripe in mounted.stripes for lane in (stripe / "images").iterdir())
    assert lane.stat().st_size == 100_000
