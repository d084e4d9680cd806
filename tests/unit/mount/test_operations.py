"""The request handlers, asked by the kernel itself."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import mmap
import os
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import trio

from ckptfs.errors import DamagedData
from ckptfs.mount.options import MountOptions
from tests.unit.mount.fake_volume import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.mount.conftest import Mounted

pytestmark = pytest.mark.mount

_LIBC = ctypes.CDLL(None, use_errno=True)


def _errno(call: Callable[..., object], *args: object, **kwargs: object) -> int:
    try:
        call(*args, **kwargs)
    except OSError as why:
        return why.errno or 0
    return 0


def _renameat2(old: Path, new: Path, flags: int) -> int:
    done = _LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags)
    return ctypes.get_errno() if done else 0


async def test_bytes_written_through_either_kind_of_handle_are_read_back(mounted: Mounted) -> None:
    data = os.urandom(3_000_001)

    def write_and_read() -> None:
        (mounted.path / "a").write_bytes(data)
        assert (mounted.path / "a").read_bytes() == data
        descriptor = os.open(mounted.path / "a", os.O_RDWR)
        os.pwrite(descriptor, b"X" * 5000, 1_000_000)
        assert os.pread(descriptor, 5002, 999_999) == data[999_999:1_000_000] + b"X" * 5000 + data[1_005_000:1_005_001]
        os.close(descriptor)

    await mounted.do(write_and_read)


async def test_a_cached_reader_sees_what_an_uncached_writer_wrote(mounted: Mounted) -> None:
    def write_and_read() -> None:
        path = mounted.path / "a"
        path.write_bytes(b"1" * 10_000)
        reader = os.open(path, os.O_RDONLY)
        writer = os.open(path, os.O_WRONLY)
        for step in range(20):
            assert os.pread(reader, 10_000, 0)
            os.pwrite(writer, b"%03d" % step, 5000)
            assert os.pread(reader, 3, 5000) == b"%03d" % step
        os.close(reader)
        os.close(writer)

    await mounted.do(write_and_read)


async def test_each_error_reaches_the_caller_as_its_own_errno(mounted: Mounted) -> None:
    def try_all() -> dict[str, int]:
        path = mounted.path
        (path / "directory").mkdir()
        (path / "directory" / "file").touch()
        return {
            "no name": _errno(os.stat, path / "nothing"),
            "a name taken": _errno(os.mkdir, path / "directory"),
            "not empty": _errno(os.rmdir, path / "directory"),
            "a long name": _errno(os.stat, path / ("n" * 256)),
            "a long new name": _errno(os.mkdir, path / ("n" * 256)),
            "the longest name": _errno(os.mkdir, path / ("n" * 255)),
        }

    assert await mounted.do(try_all) == {
        "no name": errno.ENOENT,
        "a name taken": errno.EEXIST,
        "not empty": errno.ENOTEMPTY,
        "a long name": errno.ENAMETOOLONG,
        "a long new name": errno.ENAMETOOLONG,
        "the longest name": 0,
    }


@pytest.mark.parametrize(
    ("failure", "expected", "said"),
    [
        (OSError(errno.ENOSPC, "stripes are full"), errno.ENOSPC, "stripes are full"),
        (DamagedData("chunk 3 is wrong"), errno.EIO, "chunk 3 is wrong"),
        (OSError(errno.EDQUOT, "over quota"), errno.EDQUOT, "over quota"),
        (KeyError("a bug"), errno.EIO, "nobody foresaw this"),
        (OSError("no number"), errno.EIO, "nobody foresaw this"),
    ],
)
async def test_a_failed_write_says_its_errno_logs_where_and_leaves_the_mount_up(
    mounted: Mounted, caplog: pytest.LogCaptureFixture, failure: Exception, expected: int, said: str
) -> None:
    descriptor = await mounted.do(os.open, mounted.path / "a", os.O_WRONLY | os.O_CREAT)
    ino = (await mounted.do(os.fstat, descriptor)).st_ino
    with caplog.at_level(logging.ERROR, "ckptfs"):
        mounted.volume.failure = failure
        assert await mounted.do(_errno, os.pwrite, descriptor, b"x" * 10, 4096) == expected
        mounted.volume.failure = None
    logged = next(record.getMessage() for record in caplog.records if "write" in record.getMessage())
    assert f"inode {ino} off 4096 size 10" in logged
    assert errno.errorcode[expected] in logged
    assert said in logged
    assert await mounted.do(os.pwrite, descriptor, b"x" * 10, 4096) == 10
    await mounted.do(os.close, descriptor)


async def test_a_directory_listed_while_its_3000_entries_are_deleted_shows_each_once(mounted: Mounted) -> None:
    def list_and_delete() -> list[str]:
        directory = mounted.path / "d"
        directory.mkdir()
        for number in range(3000):
            (directory / f"{number:04}").touch()
        seen: list[str] = []
        with os.scandir(directory) as entries:
            for entry in entries:
                seen.append(entry.name)
                os.unlink(entry.path)
        assert os.listdir(directory) == []
        return seen

    seen = await mounted.do(list_and_delete)
    assert sorted(seen) == [f"{number:04}" for number in range(3000)]


async def test_every_lookup_that_was_counted_is_forgotten(mounted: Mounted) -> None:
    def use_and_delete() -> None:
        for number in range(300):
            path = mounted.path / f"file-{number}"
            path.write_bytes(b"x")
            os.link(path, mounted.path / f"link-{number}")
        (mounted.path / "directory").mkdir()
        os.symlink("nowhere", mounted.path / "symlink")
        with os.scandir(mounted.path) as entries:
            assert sum(entry.stat(follow_symlinks=False).st_size for entry in entries) == 600 + len("nowhere")
        for entry in list(os.scandir(mounted.path)):
            os.rmdir(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)

    await mounted.do(use_and_delete)
    with trio.fail_after(30):  # the kernel sends FORGET in its own time
        await mounted.volume.emptied.wait()
    assert list(mounted.volume.inodes) == [ROOT]


async def test_an_unlinked_file_lives_as_long_as_it_is_open(mounted: Mounted) -> None:
    def unlink_while_open() -> bytes:
        path = mounted.path / "a"
        path.write_bytes(b"kept")
        descriptor = os.open(path, os.O_RDONLY)
        path.unlink()
        kept = os.pread(descriptor, 10, 0)
        os.close(descriptor)
        return kept

    assert await mounted.do(unlink_while_open) == b"kept"


async def test_rename_obeys_its_flags_and_refuses_those_it_does_not_know(mounted: Mounted) -> None:
    no_replace, exchange, whiteout = 1, 2, 4

    def rename() -> None:
        a, b = mounted.path / "a", mounted.path / "b"
        a.write_bytes(b"A")
        b.write_bytes(b"B")
        assert _renameat2(a, b, no_replace) == errno.EEXIST
        assert _renameat2(a, b, exchange) == 0
        assert (a.read_bytes(), b.read_bytes()) == (b"B", b"A")
        assert _renameat2(a, b, whiteout) == errno.EINVAL
        assert _renameat2(a, mounted.path / "c", exchange) == errno.ENOENT
        assert _renameat2(a, mounted.path / "c", no_replace) == 0
        os.rename(b, mounted.path / "c")
        assert os.listdir(mounted.path) == ["c"]
        assert (mounted.path / "c").read_bytes() == b"A"

    await mounted.do(rename)


async def test_user_attributes_work_and_other_namespaces_are_not_supported(mounted: Mounted) -> None:
    def use_attributes() -> None:
        path = mounted.path / "a"
        path.touch()
        os.setxattr(path, "user.step", b"12", os.XATTR_CREATE)
        assert _errno(os.setxattr, path, "user.step", b"13", os.XATTR_CREATE) == errno.EEXIST
        assert _errno(os.setxattr, path, "user.new", b"1", os.XATTR_REPLACE) == errno.ENODATA
        os.setxattr(path, "user.step", b"14", os.XATTR_REPLACE)
        os.setxattr(path, "user.empty", b"")
        assert os.getxattr(path, "user.step") == b"14"
        assert os.listxattr(path) == ["user.step", "user.empty"]
        os.removexattr(path, "user.step")
        assert _errno(os.removexattr, path, "user.step") == errno.ENODATA
        assert _errno(os.getxattr, path, "user.step") == errno.ENODATA
        for name in ("security.capability", "security.selinux", "system.posix_acl_access"):
            assert _errno(os.getxattr, path, name) == errno.EOPNOTSUPP, name

    await mounted.do(use_attributes)


async def test_a_cached_write_asks_the_volume_for_no_attribute(mounted: Mounted) -> None:
    def write() -> None:
        with (mounted.path / "a").open("w+b", buffering=0) as file:
            for _ in range(10):
                file.write(b"x" * 4096)

    await mounted.do(write)
    assert mounted.volume.requests["write"] == 10
    assert mounted.volume.requests["getxattr"] == 0


@pytest.mark.parametrize("access", [os.O_WRONLY, os.O_RDWR])
@pytest.mark.parametrize(("sync", "request_name"), [(os.O_SYNC, "fsync all"), (os.O_DSYNC, "fsync data"), (0, None)])
async def test_a_write_through_a_synchronous_handle_is_synced_before_it_returns(
    mounted: Mounted, access: int, sync: int, request_name: str | None
) -> None:
    descriptor = await mounted.do(os.open, mounted.path / "a", access | os.O_CREAT | sync)
    await mounted.do(os.write, descriptor, b"x" * 100)
    synced = {name: count for name, count in mounted.volume.requests.items() if name.startswith("fsync")}
    assert synced == ({request_name: 1} if request_name else {})
    await mounted.do(os.close, descriptor)


async def test_truncation_by_open_by_path_and_by_handle_reaches_the_volume(mounted: Mounted) -> None:
    def truncate() -> None:
        path = mounted.path / "a"
        path.write_bytes(b"0123456789")
        os.truncate(path, 7)
        assert path.read_bytes() == b"0123456"
        with path.open("r+b") as file:
            file.truncate(12)
            assert os.fstat(file.fileno()).st_size == 12
        assert path.read_bytes() == b"0123456" + bytes(5)
        os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))
        assert path.stat().st_size == 0

    await mounted.do(truncate)


async def test_appending_descriptors_of_several_processes_do_not_overwrite_each_other(mounted: Mounted) -> None:
    program = (
        "import os, sys\n"
        "fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)\n"
        "for _ in range(50): os.write(fd, sys.argv[2].encode() * 100 + b'\\n')\n"
    )

    def append() -> list[bytes]:
        command = [sys.executable, "-c", program, mounted.path / "log"]
        writers = [subprocess.Popen([*command, letter]) for letter in "abc"]
        assert [writer.wait(30) for writer in writers] == [0, 0, 0]
        return (mounted.path / "log").read_bytes().splitlines()

    lines = await mounted.do(append)
    assert sorted(set(lines)) == [b"a" * 100, b"b" * 100, b"c" * 100]
    assert len(lines) == 150


async def test_a_shared_mapping_of_a_read_write_handle_reaches_the_volume(mounted: Mounted) -> None:
    # in another process: a page fault holds the interpreter lock that the daemon needs to answer it
    program = (
        "import mmap, os, sys\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "with mmap.mmap(fd, 8192) as mapped:\n"
        "    mapped[5000:5005] = b'dirty'\n"
        "    os.close(fd)\n"
        "    mapped.flush()\n"
    )

    def write_mapped() -> bytes:
        path = mounted.path / "a"
        path.write_bytes(bytes(8192))
        subprocess.run([sys.executable, "-c", program, path], check=True, timeout=30)
        return path.read_bytes()

    assert await mounted.do(write_mapped) == bytes(5000) + b"dirty" + bytes(3187)


async def test_a_shared_mapping_needs_a_handle_that_may_read(mounted: Mounted) -> None:
    def map_write_only() -> int:
        path = mounted.path / "a"
        path.write_bytes(bytes(4096))
        descriptor = os.open(path, os.O_WRONLY)
        number = _errno(mmap.mmap, descriptor, 4096, prot=mmap.PROT_WRITE)
        os.close(descriptor)
        return number

    assert await mounted.do(map_write_only) in (errno.ENODEV, errno.EACCES)


async def test_an_o_direct_reader_is_answered_by_the_volume_each_time(mounted: Mounted) -> None:
    def read_direct() -> bytes:
        path = mounted.path / "a"
        path.write_bytes(b"1" * 4096)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, 4096)
        assert os.preadv(descriptor, [buffer], 0) == 4096
        mounted.volume.child(ROOT, b"a").data[:] = b"2" * 4096
        assert os.preadv(descriptor, [buffer], 0) == 4096
        os.close(descriptor)
        return buffer[:]

    assert await mounted.do(read_direct) == b"2" * 4096


async def test_special_files_links_and_times_are_what_they_were_made(mounted: Mounted) -> None:
    def make() -> None:
        path = mounted.path
        os.mkfifo(path / "fifo", 0o640)
        assert stat.S_ISFIFO((path / "fifo").stat().st_mode)
        os.symlink("some/target é", path / "symlink")
        assert os.readlink(path / "symlink") == "some/target é"
        (path / "a").touch()
        os.utime(path / "a", ns=(1_234_567_890_123_456_789, 987_654_321_987_654_321))
        os.link(path / "a", path / "b")
        found = (path / "b").stat()
        assert (found.st_atime_ns, found.st_mtime_ns) == (1_234_567_890_123_456_789, 987_654_321_987_654_321)
        assert found.st_nlink == 2
        os.chmod(path / "a", 0o4755)
        assert stat.S_IMODE((path / "b").stat().st_mode) == 0o4755

    await mounted.do(make)


async def test_the_umask_is_applied_and_a_setgid_directory_gives_its_group(mounted: Mounted) -> None:
    def make() -> None:
        program = "import os; os.umask(0o027); os.mkdir('d', 0o777); os.close(os.open('f', os.O_CREAT, 0o666))"
        subprocess.run([sys.executable, "-c", program], cwd=mounted.path, check=True, timeout=30)
        assert stat.S_IMODE((mounted.path / "d").stat().st_mode) == 0o750
        assert stat.S_IMODE((mounted.path / "f").stat().st_mode) == 0o640
        (mounted.path / "d").chmod(0o2755)
        (mounted.path / "d" / "e").mkdir()
        assert (mounted.path / "d" / "e").stat().st_mode & stat.S_ISGID

    await mounted.do(make)


async def test_locks_are_kept_between_processes(mounted: Mounted) -> None:
    program = "import fcntl, sys; fcntl.flock(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"

    def lock() -> int:
        with (mounted.path / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            command = [sys.executable, "-c", program, mounted.path / "lock"]
            # close_fds would close the file in the child before exec, a request to this very process, which then has
            # to wait for that exec (vfork).
            return subprocess.run(command, check=False, timeout=30, capture_output=True, close_fds=False).returncode

    assert await mounted.do(lock) == 1


async def test_fsync_of_files_and_directories_reaches_the_volume(mounted: Mounted) -> None:
    def sync() -> None:
        (mounted.path / "d").mkdir()
        directory = os.open(mounted.path / "d", os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        with (mounted.path / "a").open("wb") as file:
            os.fsync(file.fileno())
            os.fdatasync(file.fileno())

    await mounted.do(sync)
    requests = mounted.volume.requests
    assert (requests["fsync directory"], requests["fsync all"], requests["fsync data"]) == (1, 1, 1)


async def test_statfs_shows_the_volumes_space(mounted: Mounted) -> None:
    found = await mounted.do(os.statvfs, mounted.path)
    assert (found.f_blocks * found.f_frsize, found.f_bfree * found.f_frsize) == (1 << 30, 1 << 29)
    assert (found.f_bavail * found.f_frsize, found.f_files, found.f_ffree) == (1 << 28, 1000, 900)
    assert found.f_namemax == 255


async def test_what_changed_without_the_kernel_is_seen_after_an_invalidation(mounted: Mounted) -> None:
    path = mounted.path / "a"
    await mounted.do(path.write_bytes, b"old")
    assert await mounted.do(path.read_bytes) == b"old"
    inode = mounted.volume.child(ROOT, b"a")
    inode.data[:] = b"newer"
    assert mounted.session is not None
    await mounted.session.invalidate_inode(inode.ino)
    assert await mounted.do(path.read_bytes) == b"newer"
    del mounted.volume.inode(ROOT).names[b"a"]
    await mounted.session.invalidate_entry(ROOT, b"a")
    assert not await mounted.do(path.exists)
    await mounted.session.invalidate_entry(ROOT, b"never seen")


class TestPresentation:
    @pytest.fixture
    def options(self) -> MountOptions:
        return MountOptions.parse("uid=1234,gid=5678,umask=027")

    async def test_owner_and_mode_are_shown_as_the_options_say(self, mounted: Mounted) -> None:
        def look() -> tuple[int, int, int, int]:
            (mounted.path / "a").touch(0o600)
            found = (mounted.path / "a").stat()
            return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), stat.S_IFMT(found.st_mode)

        assert await mounted.do(look) == (1234, 5678, 0o750, stat.S_IFREG)
        assert mounted.volume.child(ROOT, b"a").uid == os.getuid()


class TestReadOnly:
    @pytest.fixture
    def options(self) -> MountOptions:
        return MountOptions.parse("ro")

    async def test_the_kernel_refuses_every_change(self, mounted: Mounted) -> None:
        assert await mounted.do(_errno, os.mkdir, mounted.path / "a") == errno.EROFS
