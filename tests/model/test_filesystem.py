"""A mount beside a local directory: random programs do the same on both and must see the same.

Every operation gives the same value or the same error on both sides; whole trees are compared at intervals and at the end. In
between, the volume is unmounted and mounted again, and the daemon is killed; then ``promises.py`` says what each file may hold.

``pytest tests/model --hypothesis-profile=long`` runs thousands of operations in long examples.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, event, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.model.promises import Promise
from tests.model.rig import CHUNK_BYTES, Rig

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
PathChoice = bytes | int

QUICK = settings(
    max_examples=20,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
LONG = settings(QUICK, max_examples=100, stateful_step_count=100)

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
MOST_BYTES = 16 * CHUNK_BYTES

_libc = ctypes.CDLL(None, use_errno=True)
_bytes_to_write = random.Random(1).randbytes(MOST_BYTES)

_chunks = st.integers(0, 7).map(lambda chunk: chunk * CHUNK_BYTES)
OFFSETS = st.integers(0, 7 * CHUNK_BYTES) | st.builds(lambda chunk, by: max(0, chunk + by), _chunks, st.integers(-9, 9))
LENGTHS = st.integers(0, 300) | st.integers(0, 4 * CHUNK_BYTES)
SEEDS = st.integers(0, MOST_BYTES // 2)
THERE = st.integers(0, 1 << 16)
"""Stands for something that is there: the number of a path in the sorted tree."""
DIRECTORIES = st.sampled_from([b".", b"d", b"d/e", b"f"])
NEW = st.sampled_from(
    [b"a", b"b", b"c", b"d/a", b"d/b", b"d/e/a", b"f/a", b"f/\xff\xfe", b"n" * 255, b"n" * 256, b"a/b"]
)
FILES = THERE | NEW
PATHS = THERE | NEW | st.sampled_from([b"d", b"d/e", b"f", b"f/e"])
FLAGS = st.builds(
    lambda access, more: access | more,
    st.sampled_from([os.O_RDONLY, os.O_WRONLY, os.O_RDWR]),
    st.sampled_from(
        [
            0,
            os.O_CREAT,
            os.O_CREAT | os.O_TRUNC,
            os.O_CREAT | os.O_TRUNC,
            os.O_CREAT | os.O_EXCL,
            os.O_CREAT | os.O_APPEND,
            os.O_TRUNC,
            os.O_APPEND,
            os.O_CREAT | os.O_NOFOLLOW,
        ]
    ),
)
HANDLES = st.integers(0, 1 << 16)
XATTRS = st.sampled_from([b"user.one", b"user.two", b"user." + b"x" * 200])


@dataclass
class Handle:
    """One open file description on both sides."""

    descriptors: tuple[int, int]
    writes: bool
    key: int
    """The inode on the local side."""


class MountBesideDirectory(RuleBasedStateMachine):
    """Side 0 is the mount, side 1 the local directory."""

    rig: ClassVar[Rig]

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[Handle] = []
        self.promises: dict[int, Promise] = {}
        self.own_mtime: set[int] = set()
        self.steps_since_mount = 0
        self.intact = False

    @initialize()
    def begin(self) -> None:
        self.tops = self.rig.new_example()
        # One directory further down, so that links to ".." lead to the same place on both sides.
        self.roots = tuple(os.fsencode(top / "root") for top in self.tops)
        for root in self.roots:
            for directory in (b"", b"d", b"d/e"):
                os.mkdir(os.path.join(root, directory))
        self.intact = True
        for path, size in ((b"a", 5 * CHUNK_BYTES // 2), (b"d/a", 100), (b"d/e/b", CHUNK_BYTES)):
            self.save(path, size, size, sync=False, close=True)

    def teardown(self) -> None:
        try:
            if self.intact:
                self.close_all()
                self.compare_trees()
                self.rig.check_log()
        finally:
            self.abandon_handles()
            for top in getattr(self, "tops", ()):
                with self.rig.watchdog.guard():
                    shutil.rmtree(top, ignore_errors=not self.intact)

    # Files

    @rule(path=FILES, flags=FLAGS, mode=st.sampled_from([0o600, 0o644, 0o755]))
    def open_file(self, path: PathChoice, flags: int, mode: int) -> None:
        before = self._local_content(path) if flags & os.O_TRUNC else None
        opened = self.both(lambda side: os.open(self._at(side, path), flags, mode), compare=False)
        if opened is None:
            return
        local = os.fstat(opened[1])
        if stat.S_ISDIR(local.st_mode):
            for descriptor in opened:
                os.close(descriptor)
            return
        key = local.st_ino
        promise = self.promises.setdefault(key, Promise([b""]))
        if before:
            promise.started_anew()
        if flags & os.O_TRUNC:
            self.own_mtime.discard(key)
        self.handles.append(Handle(opened, flags & os.O_ACCMODE != os.O_RDONLY, key))

    @rule(path=FILES, seed=SEEDS, length=LENGTHS, sync=st.booleans(), close=st.booleans())
    def save(self, path: PathChoice, seed: int, length: int, sync: bool, close: bool) -> None:
        """What ``torch.save`` does, up to some point."""
        opened = len(self.handles)
        self.open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        if len(self.handles) == opened:
            return
        self.write_on(-1, seed, length)
        if sync:
            self.sync_file(-1, data_only=False)
        if close:
            self.close_file(-1)

    @precondition(lambda self: self.handles)
    @rule(which=HANDLES)
    def close_file(self, which: int) -> None:
        self._close(self.handles.pop(which % len(self.handles)))

    @precondition(lambda self: self.handles)
    @rule(which=HANDLES, offset=OFFSETS, seed=SEEDS, length=LENGTHS)
    def write_at(self, which: int, offset: int, seed: int, length: int) -> None:
        handle = self._handle(which)
        if os.fstat(handle.descriptors[1]).st_size > MOST_BYTES // 2:
            return
        data = _bytes_to_write[seed : seed + length]
        if self.on(handle, lambda descriptor: os.pwrite(descriptor, data, offset)):
            self._changed(handle)

    @precondition(lambda self: self.handles)
    @rule(which=HANDLES, seed=SEEDS, length=LENGTHS)
    def write_on(self, which: int, seed: int, length: int) -> None:
        handle = self._handle(which)
        if os.fstat(handle.descriptors[1]).st_size > MOST_BYTES // 2:
            return
        if self.on(handle, lambda descriptor: os.write(descriptor, _bytes_to_write[seed : seed + length])):
            self._changed(handle)

    @precondition(lambda self: self.handles)
    @rule(which=HANDLES, offset=OFFSETS, length=LENGTHS)
    def read_at(self, which: int, offset: int, length: int) -> None:
        self.on(self._handle(which), lambda descriptor: os.pread(descriptor, length, offset))

    @precondition(lambda self: self.handles)
    @rule(which=HANDLES, where=st.sampled_from([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END]), by=st.integers(-9, 9))
    def seek(self, which: int, where: int, by: int) -> None:
        self.on(self._handle(which), lambda descriptor: os.lseek(descriptor, by, where))

    @precondition(lambda self: self.handles)
    @rule(which=HANDLES, size=OFFSETS)
    def truncate_open(self, which: int, size: int) -> None:
        handle = self._handle(which)
        if self.on(handle, lambda descriptor: os.ftruncate(descriptor, size)) is not None:
            self._truncated(handle.key, size, self._content_of(handle))

    @rule(path=FILES, size=OFFSETS)
    def truncate(self, path: PathChoice, size: int) -> None:
        if self.both(lambda side: os.truncate(self._at(side, path), size)) is not None:
            self._truncated(os.stat(self._at(1, path)).st_ino, size, self._local_content(path) or b"")

    @precondition(lambda self: self.handles)
    @rule(which=HANDLES, offset=OFFSETS, seed=SEEDS, length=LENGTHS)
    def write_mapped(self, which: int, offset: int, seed: int, length: int) -> None:
        handle = self._handle(which)
        size = os.fstat(handle.descriptors[1]).st_size
        if not size:
            return
        start = offset % size
        data = _bytes_to_write[seed : seed + min(length, size - start)]

        def write(descriptor: int) -> None:
            with mmap.mmap(descriptor, size) as mapped:
                mapped[start : start + len(data)] = data
                mapped.flush()

        done = self.on(handle, write)
        if done is not None and data:
            self._changed(handle)
            self.promises[handle.key].synced()

    @precondition(lambda self: self.handles)
    @rule(which=HANDLES)
    def read_mapped(self, which: int) -> None:
        handle = self._handle(which)
        size = os.fstat(handle.descriptors[1]).st_size
        if not size:
            return

        def read(descriptor: int) -> bytes:
            with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as mapped:
                return mapped[:]

        self.on(handle, read)

    @precondition(lambda self: self.handles)
    @rule(which=HANDLES, data_only=st.booleans())
    def sync_file(self, which: int, data_only: bool) -> None:
        handle = self._handle(which)
        if self.on(handle, os.fdatasync if data_only else os.fsync) is not None:
            self.promises[handle.key].synced()

    @rule(path=FILES)
    def read_file(self, path: PathChoice) -> None:
        self.both(lambda side: _content(self._at(side, path)))

    # Names

    @rule(source=PATHS, new_path=PATHS, flags=st.sampled_from([0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE]))
    def rename(self, source: PathChoice, new_path: PathChoice, flags: int) -> None:
        source, new_path = self._path(source), self._path(new_path)
        moved = os.lstat(self._at(1, source)).st_ino if os.path.lexists(self._at(1, source)) else 0
        if self.both(lambda side: _rename(self._at(side, source), self._at(side, new_path), flags)) is not None:
            if moved in self.promises:
                self.promises[moved].finished()
            self._forget_the_lost()

    @rule(source=PATHS, new_path=PATHS)
    def link(self, source: PathChoice, new_path: PathChoice) -> None:
        self.both(lambda side: os.link(self._at(side, source), self._at(side, new_path), follow_symlinks=False))

    @rule(to=st.sampled_from([b"a", b"d", b"d/b", b"../a", b".", b"missing"]), path=PATHS)
    def symlink(self, to: bytes, path: PathChoice) -> None:
        self.both(lambda side: os.symlink(to, self._at(side, path)))

    @rule(path=PATHS)
    def unlink(self, path: PathChoice) -> None:
        if self.both(lambda side: os.unlink(self._at(side, path))) is not None:
            self._forget_the_lost()

    @rule(path=PATHS | st.sampled_from([b"d", b"d/e", b"f"]))
    def mkdir(self, path: PathChoice) -> None:
        self.both(lambda side: os.mkdir(self._at(side, path)))

    @rule(path=PATHS)
    def rmdir(self, path: PathChoice) -> None:
        self.both(lambda side: os.rmdir(self._at(side, path)))

    @rule(path=PATHS | DIRECTORIES)
    def list_directory(self, path: PathChoice) -> None:
        self.both(
            lambda side: sorted(
                (entry.name, entry.is_dir(), entry.is_symlink()) for entry in os.scandir(self._at(side, path))
            )
        )

    @rule(path=PATHS)
    def read_link(self, path: PathChoice) -> None:
        self.both(lambda side: os.readlink(self._at(side, path)))

    @rule(path=DIRECTORIES)
    def sync_directory(self, path: PathChoice) -> None:
        """Seals the files that it names, too."""

        def sync(side: int) -> None:
            descriptor = os.open(self._at(side, path), os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

        if self.both(sync) is not None:
            for entry in os.scandir(self._at(1, path)):
                if entry.is_file(follow_symlinks=False) and entry.inode() in self.promises:
                    self.promises[entry.inode()].synced()

    # Attributes

    @rule(path=PATHS, mode=st.integers(0, 0o1777))
    def chmod(self, path: PathChoice, mode: int) -> None:
        """Without set-user-id: a mount drops it at any write, ext4 keeps it when root writes."""
        self.both(lambda side: os.chmod(self._at(side, path), mode))

    @rule(path=PATHS, owner=st.integers(0, 3))
    def chown(self, path: PathChoice, owner: int) -> None:
        self.both(lambda side: os.chown(self._at(side, path), owner, -1, follow_symlinks=False))

    @rule(path=FILES, mtime_ns=st.integers(0, 2 * 10**18))
    def utime(self, path: PathChoice, mtime_ns: int) -> None:
        done = self.both(lambda side: os.utime(self._at(side, path), ns=(mtime_ns, mtime_ns)))
        if done is not None:
            found = os.stat(self._at(1, path))
            if stat.S_ISREG(found.st_mode):
                self.own_mtime.add(found.st_ino)

    @rule(path=PATHS)
    def stat(self, path: PathChoice) -> None:
        self.both(lambda side: self._told(os.stat(self._at(side, path)), os.stat(self._at(1, path)).st_ino))

    @rule(
        path=PATHS,
        name=XATTRS,
        value=st.binary(max_size=300),
        flags=st.sampled_from([0, os.XATTR_CREATE, os.XATTR_REPLACE]),
    )
    def set_xattr(self, path: PathChoice, name: bytes, value: bytes, flags: int) -> None:
        self.both(lambda side: os.setxattr(self._at(side, path), name, value, flags))

    @rule(path=PATHS, name=XATTRS)
    def get_xattr(self, path: PathChoice, name: bytes) -> None:
        self.both(lambda side: (os.getxattr(self._at(side, path), name), sorted(os.listxattr(self._at(side, path)))))

    @rule(path=PATHS, name=XATTRS)
    def remove_xattr(self, path: PathChoice, name: bytes) -> None:
        self.both(lambda side: os.removexattr(self._at(side, path), name))

    # The volume

    @rule()
    def compare_trees(self) -> None:
        with self.rig.watchdog.guard():
            mine = self._tree(0)
        assert mine == self._tree(1)

    @precondition(lambda self: self.steps_since_mount >= 12)
    @rule()
    def unmount_and_mount(self) -> None:
        self.close_all()
        self.rig.remount()
        self.steps_since_mount = 0
        for promise in self.promises.values():
            promise.sealed_for_good()
        self.compare_trees()

    @precondition(lambda self: self.steps_since_mount >= 12)
    @rule()
    def kill_and_mount(self) -> None:
        """P-daemon-killed: closed files and names stand as they were; a torn overwrite yields to its predecessor."""
        self.rig.kill()
        self.abandon_handles()
        self.rig.mount_again()
        self.steps_since_mount = 0
        self._forget_the_lost()
        for directory, _, names in os.walk(self.roots[1]):
            for name in names:
                path = os.path.relpath(os.path.join(directory, name), self.roots[1])
                if stat.S_ISREG(os.lstat(self._at(1, path)).st_mode):
                    self._adopt(path)
        self.compare_trees()

    def _adopt(self, path: PathChoice) -> None:
        """Let the local side have what the kill left, if it may."""
        local = self._at(1, path)
        found = os.lstat(local)
        promise = self.promises[found.st_ino]
        was = _content(local)
        left = _content(self._at(0, path))
        assert promise.allows(left), (
            f"{path!r} was left with {len(left)} bytes; it had {len(was)}, torn: {promise.torn}, states: "
            f"{[len(state) for state in promise.states]}, predecessors: {[len(state) for state in promise.predecessors]}, "
            f"first difference at {_first_difference(left, was)}\n{self.rig.volume.log()[-2000:]}"
        )
        if promise.torn:
            event(
                "a kill left a torn file "
                + ("as written" if left == was else "without its last bytes, or with a predecessor")
            )
        promise.recovered_as(left)
        if left != was:
            Path(os.fsdecode(local)).write_bytes(left)
            self.own_mtime.discard(found.st_ino)

    # Inside

    def both(self, act: Callable[[int], T], *, compare: bool = True) -> tuple[T, T] | None:
        """Do it on both sides; what it gave, or None where it failed on both alike."""
        self.steps_since_mount += 1
        with self.rig.watchdog.guard():
            mine, mine_failed = _attempt(act, 0)
        local, local_failed = _attempt(act, 1)
        told = f"mount: {_say(mine_failed, mine)}, local: {_say(local_failed, local)}"
        note(told)
        assert mine_failed == local_failed, told
        if local_failed is not None:
            return None
        assert mine is not None
        assert local is not None
        if compare:
            assert mine[0] == local[0], told
        return mine[0], local[0]

    def on(self, handle: Handle, act: Callable[[int], T]) -> tuple[T, T] | None:
        return self.both(lambda side: act(handle.descriptors[side]))

    def close_all(self) -> None:
        while self.handles:
            self._close(self.handles.pop())

    def abandon_handles(self) -> None:
        """Close what a kill left open, which is an error on the dead mount."""
        for handle in self.handles:
            for descriptor in handle.descriptors:
                with suppress(OSError):
                    os.close(descriptor)
        self.handles.clear()

    def _close(self, handle: Handle) -> None:
        self.on(handle, os.close)
        if handle.writes and handle.key in self.promises:
            self.promises[handle.key].finished()
        self._forget_the_lost()

    def _handle(self, which: int) -> Handle:
        return self.handles[which % len(self.handles)]

    def _at(self, side: int, path: PathChoice) -> bytes:
        return os.path.join(self.roots[side], self._path(path))

    def _path(self, path: PathChoice) -> bytes:
        """A name, or the one of what is there that the number stands for."""
        if isinstance(path, bytes):
            return path
        root = self.roots[1]
        found = sorted(
            os.path.relpath(os.path.join(directory, name), root)
            for directory, directories, names in os.walk(root)
            for name in [*directories, *names]
        )
        chosen = found[path % len(found)] if found else b"nothing"
        note(f"{path} is {chosen!r}")
        return chosen

    def _changed(self, handle: Handle) -> None:
        self.own_mtime.discard(handle.key)
        self.promises[handle.key].changed(self._content_of(handle))

    def _truncated(self, key: int, size: int, content: bytes) -> None:
        self.own_mtime.discard(key)
        promise = self.promises[key]
        if content == promise.states[-1]:
            return
        if size == 0:
            promise.started_anew()
        else:
            promise.changed(content)

    def _content_of(self, handle: Handle) -> bytes:
        return _content(b"/proc/self/fd/%d" % handle.descriptors[1])

    def _local_content(self, path: PathChoice) -> bytes | None:
        try:
            return _content(self._at(1, path))
        except OSError:
            return None

    def _forget_the_lost(self) -> None:
        """Inode numbers are used again."""
        known = {handle.key for handle in self.handles}
        for directory, _, names in os.walk(os.fsencode(self.tops[1])):
            known |= {os.lstat(os.path.join(directory, name)).st_ino for name in names}
        self.promises = {key: promise for key, promise in self.promises.items() if key in known}
        self.own_mtime &= known

    def _told(self, found: os.stat_result, local_inode: int) -> tuple[object, ...]:
        size = None if stat.S_ISDIR(found.st_mode) else found.st_size
        mtime_ns = found.st_mtime_ns if local_inode in self.own_mtime else None
        return (oct(found.st_mode), found.st_nlink, found.st_uid, found.st_gid, size, mtime_ns)

    def _tree(self, side: int) -> dict[bytes, tuple[object, ...]]:
        top = os.fsencode(self.tops[side])
        tree: dict[bytes, tuple[object, ...]] = {}
        for directory, directories, names in os.walk(top):
            for name in [*directories, *names]:
                path = os.path.join(directory, name)
                relative = os.path.relpath(path, top)
                found = os.lstat(path)
                inode = os.lstat(os.path.join(os.fsencode(self.tops[1]), relative)).st_ino
                content: object = None
                if stat.S_ISREG(found.st_mode):
                    content = _content(path)
                elif stat.S_ISLNK(found.st_mode):
                    content = os.readlink(path)
                xattrs = sorted((key, os.getxattr(path, key, follow_symlinks=False)) for key in _user_xattrs(path))
                tree[relative] = (self._told(found, inode), content, xattrs)
        return tree


def _attempt(act: Callable[[int], T], side: int) -> tuple[tuple[T] | None, str | None]:
    try:
        return (act(side),), None
    except OSError as why:
        return None, errno.errorcode.get(why.errno or 0, f"{why!r}")


def _say(failed: str | None, value: object) -> str:
    if failed is not None:
        return failed
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}… ({len(text)} characters)"


def _content(path: bytes) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def _user_xattrs(path: bytes) -> list[str]:
    return [name for name in os.listxattr(path, follow_symlinks=False) if name.startswith("user.")]


def _first_difference(one: bytes, other: bytes) -> int | None:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), None)


def _rename(source: bytes, target: bytes, flags: int) -> None:
    if _libc.renameat2(-100, source, -100, target, flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("width", ["auto", "2"])
def test_programs_see_on_a_mount_what_they_see_on_a_local_directory(
    width: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    class Machine(MountBesideDirectory):
        rig = Rig(tmp_path, width)

    chosen = LONG if pytestconfig.getoption("--hypothesis-profile") == "long" else QUICK
    try:
        run_state_machine_as_test(Machine, settings=chosen)
    finally:
        Machine.rig.dispose()
