"""How a mount begins and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import trio

from ckptfs.errors import InvalidArgument, ProtectedData, RefusedError, VolumeInUse
from ckptfs.mount import kernel, session, table
from ckptfs.mount.options import MountOptions
from ckptfs.mount.session import prepare_mountpoint
from tests.unit.mount.conftest import Mounted

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.mount


async def test_the_mount_names_its_volume_whatever_the_volume_is_called(mounted: Mounted) -> None:
    entry = table.mount_at(mounted.path)
    assert entry is not None
    assert entry.volume_directory == mounted.path.parent / "volume, é"
    assert table.mount_holding(mounted.path / "deep" / "below") == entry
    assert table.mount_holding(mounted.path.parent) is None


async def test_the_bare_mountpoint_is_unwritable_after_the_mount(mounted: Mounted) -> None:
    assert stat.S_IMODE((await mounted.do(mounted.path.stat)).st_mode) == 0o755
    assert mounted.session is not None
    await mounted.session.request_unmount()
    with trio.fail_after(30):
        await mounted.ended.wait()
    assert stat.S_IMODE(mounted.path.stat().st_mode) == 0o555
    assert table.mount_at(mounted.path) is None


async def test_unmounting_a_busy_mount_is_refused_naming_who_holds_what(mounted: Mounted) -> None:
    path = mounted.path / "held"
    descriptor = await mounted.do(os.open, path, os.O_WRONLY | os.O_CREAT)
    assert mounted.session is not None
    with pytest.raises(ProtectedData) as refused:
        await mounted.session.request_unmount()
    assert str(path) in str(refused.value)
    assert f"pid {os.getpid()}" in str(refused.value)
    assert await mounted.do(os.write, descriptor, b"still works") == 11
    await mounted.do(os.close, descriptor)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_unmounts(mounted: Mounted, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    with trio.fail_after(30):
        await mounted.ended.wait()
    assert table.mount_at(mounted.path) is None


async def test_a_signal_to_a_busy_mount_lets_open_files_be_finished(mounted: Mounted) -> None:
    descriptor = await mounted.do(os.open, mounted.path / "a", os.O_WRONLY | os.O_CREAT)
    os.kill(os.getpid(), signal.SIGTERM)
    with trio.fail_after(30):
        while table.mount_at(mounted.path) is not None:  # stat would ask the loop that waits here
            await trio.lowlevel.checkpoint()
    assert await mounted.do(os.write, descriptor, b"the rest") == 8
    assert not mounted.ended.is_set()
    await mounted.do(os.close, descriptor)
    with trio.fail_after(30):
        await mounted.ended.wait()
    assert mounted.volume.requests["flush"] == 1  # RELEASE may be lost with the connection


async def test_a_second_signal_ends_a_busy_mount_at_once(mounted: Mounted) -> None:
    descriptor = await mounted.do(os.open, mounted.path / "a", os.O_WRONLY | os.O_CREAT)
    os.kill(os.getpid(), signal.SIGTERM)
    with trio.fail_after(30):
        while table.mount_at(mounted.path) is not None:  # stat would ask the loop that waits here
            await trio.lowlevel.checkpoint()
    os.kill(os.getpid(), signal.SIGTERM)
    with trio.fail_after(30):
        await mounted.ended.wait()
    with pytest.raises(OSError, match="not connected"):
        os.write(descriptor, b"x")
    with contextlib.suppress(OSError):  # closing tells the same, and closes
        os.close(descriptor)


async def test_an_unmount_by_somebody_else_ends_the_session(mounted: Mounted) -> None:
    await mounted.do(kernel.unmount, mounted.path, lazily=False)
    with trio.fail_after(30):
        await mounted.ended.wait()


async def test_a_mountpoint_in_use_is_refused(mounted: Mounted) -> None:
    with pytest.raises(VolumeInUse, match="is mounted on"):
        await mounted.do(prepare_mountpoint, mounted.path)


async def test_a_mount_left_dead_by_a_killed_daemon_is_cleared_away(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys, trio\n"
        "from ckptfs.mount.options import MountOptions\n"
        "from ckptfs.mount.session import serve_volume\n"
        "from tests.unit.mount.fake_volume import FakeVolume\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "serve = lambda: serve_volume(FakeVolume(), path, path, MountOptions(), ready=lambda: os._exit(9))\n"
        "trio.run(serve)\n"
    )
    mountpoint = tmp_path / "mountpoint"
    mountpoint.mkdir()
    assert subprocess.run([sys.executable, "-c", program, mountpoint], check=False, timeout=60).returncode == 9
    try:
        with pytest.raises(OSError, match="not connected"):
            os.statvfs(mountpoint)
        assert prepare_mountpoint(mountpoint) == mountpoint
        assert mountpoint.is_dir()
    finally:
        subprocess.run(["umount", "-l", mountpoint], check=False, capture_output=True, timeout=60)


def test_a_mountpoint_must_be_a_directory_outside_the_volumes_way(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="create the directory"):
        prepare_mountpoint(tmp_path / "missing")
    (tmp_path / "file").touch()
    with pytest.raises(RefusedError, match="not a directory"):
        prepare_mountpoint(tmp_path / "file")
    with pytest.raises(RefusedError, match="lies inside the mountpoint"):
        session.check_permitted(tmp_path / "volume", tmp_path, MountOptions())


@pytest.mark.root
async def test_read_ahead_and_background_requests_are_raised(mounted: Mounted) -> None:
    entry = table.mount_at(mounted.path)
    assert entry is not None
    read_ahead = trio.Path(f"/sys/class/bdi/{entry.device_major}:{entry.device_minor}/read_ahead_kb")
    if not os.access(read_ahead, os.W_OK):
        pytest.skip("this container may not write to /sys")
    assert int(await read_ahead.read_text()) == kernel.READ_AHEAD_KIB


def test_mount_options_are_read_and_what_is_unknown_is_named() -> None:
    options = MountOptions.parse("ro,allow_other,uid=5,umask=022,noatime,default_permissions,fsname=x")
    assert (options.read_only, options.allow_other, options.fsname, options.kernel) == (True, True, "x", ("noatime",))
    assert (options.presentation.uid, options.presentation.gid, options.presentation.umask) == (5, None, 0o022)
    assert MountOptions.parse("noallow_other") == MountOptions()
    assert MountOptions.parse("") == MountOptions(allow_other=os.geteuid() == 0)
    for text, said in {
        "allow_othr": "did you mean allow_other",
        "uid": "uid needs a value",
        "uid=me": "uid must be a number",
        "umask=999": "octal",
        "ro=1": "ro takes no value",
    }.items():
        with pytest.raises(InvalidArgument, match=said):
            MountOptions.parse(text)
