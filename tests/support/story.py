"""Operations on a mount, one after the other, with the states that a crash may leave behind.

A :class:`Story` performs a step and notes what it makes of the tree. When the daemon dies, the last step was in flight:
the tree may be as before it or as after it, and nothing else. What a file may hold is a set of contents, or every
prefix of one while its first content is being written.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DAEMON_GONE = (errno.ENOTCONN, errno.ECONNABORTED)


@dataclass(frozen=True)
class Holds:
    """A regular file: one of ``contents``, or a prefix of ``prefix_of``."""

    contents: tuple[bytes, ...]
    prefix_of: bytes = b""

    def allows(self, found: object) -> bool:
        if not isinstance(found, bytes):
            return False
        return found in self.contents or (bool(self.prefix_of) and self.prefix_of.startswith(found))

    def __repr__(self) -> str:
        sizes = [f"{content[:8]!r}… {len(content)}" for content in self.contents]
        return f"Holds({', '.join(sizes)}{f', prefix of {len(self.prefix_of)}' if self.prefix_of else ''})"


DIRECTORY = "directory"
Tree = dict[str, Holds | str]
"""Path to file, :data:`DIRECTORY`, or ``-> target``."""


class StoryEndedError(Exception):
    """The daemon died in a step."""


class Story:
    """Steps on the mount at ``root``, which holds ``tree``."""

    def __init__(self, root: Path, tree: Tree | None = None) -> None:
        self.root = root
        self.before: Tree = dict(tree or {})
        self.tree: Tree = dict(self.before)

    def do(self, call: Callable[[], object], **paths: object) -> object:
        """One step: ``changes`` maps paths to what is there afterwards; None: nothing. Raises :class:`StoryEndedError`."""
        changes = paths.get("changes", {})
        assert isinstance(changes, dict)
        self.before = dict(self.tree)
        for path, after in changes.items():
            if after is None:
                self.tree.pop(path, None)
            else:
                self.tree[path] = after
        try:
            done = call()
        except OSError as why:
            if why.errno in DAEMON_GONE:
                raise StoryEndedError from why
            raise
        self.before = dict(self.tree)
        return done

    def mkdir(self, path: str) -> None:
        self.do(lambda: os.mkdir(self.root / path), changes={path: DIRECTORY})

    def symlink(self, target: str, path: str) -> None:
        self.do(lambda: os.symlink(target, self.root / path), changes={path: f"-> {target}"})

    def unlink(self, path: str) -> None:
        self.do(lambda: os.unlink(self.root / path), changes={path: None})

    def rename(self, source: str, target: str) -> None:
        """Of a file."""
        moved = self.tree[source]
        self.do(lambda: os.rename(self.root / source, self.root / target), changes={source: None, target: moved})

    def write_new(self, path: str, content: bytes, *, fsync: bool = False) -> None:
        """Create, write in pieces, perhaps fsync, close."""
        descriptor = self._open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, Holds((b"",)))
        self._write(descriptor, path, content, Holds((b"",), prefix_of=content))
        self._finish(descriptor, path, Holds((content,)), fsync=fsync)

    def overwrite(self, path: str, content: bytes, *, fsync: bool = False) -> None:
        """Open with O_TRUNC, write in pieces, close: until it is closed a crash must leave what was there."""
        good = self.tree[path]
        assert isinstance(good, Holds)
        descriptor = self._open(path, os.O_WRONLY | os.O_TRUNC, good)
        self._write(descriptor, path, content, good)
        self._finish(descriptor, path, Holds((content,)), fsync=fsync)

    def edit(self, path: str, offset: int, data: bytes) -> None:
        """Write in place, close."""
        old = self.tree[path]
        assert isinstance(old, Holds)
        (content,) = old.contents
        new = content[:offset] + data + content[offset + len(data) :]
        descriptor = self._open(path, os.O_RDWR, old)
        step = Holds((content, new))
        self.do(lambda: os.pwrite(descriptor, data, offset), changes={path: step})
        self._finish(descriptor, path, Holds((new,)), fsync=False)

    def read(self, path: str) -> None:
        """Read it whole; it must hold what it should."""
        expected = self.tree[path]
        assert isinstance(expected, Holds)
        found = self.do((self.root / path).read_bytes)
        assert expected.allows(found)

    def check(self, moment: str) -> None:
        """The tree on the mount is as before or after the last step; the story goes on from there."""
        found = read_tree(self.root)
        problems = [_difference(tree, found) for tree in (self.before, self.tree)]
        assert "" in problems, (
            f"{moment}: neither as before the last step ({problems[0]}) nor as after it ({problems[1]})"
        )
        self.tree = found

    def _open(self, path: str, flags: int, after: Holds) -> int:
        descriptor = self.do(lambda: os.open(self.root / path, flags, 0o644), changes={path: after})
        assert isinstance(descriptor, int)
        return descriptor

    def _write(self, descriptor: int, path: str, content: bytes, meanwhile: Holds) -> None:
        piece = 300_001  # straddles chunks
        try:
            for start in range(0, len(content), piece):
                self.do(
                    lambda start=start: os.write(descriptor, content[start : start + piece]), changes={path: meanwhile}
                )
        except StoryEndedError:
            _close_dead(descriptor)
            raise

    def _finish(self, descriptor: int, path: str, after: Holds, *, fsync: bool) -> None:
        try:
            if fsync:
                self.do(lambda: os.fsync(descriptor), changes={path: after})
            self.do(lambda: os.close(descriptor), changes={path: after})
        except StoryEndedError:
            _close_dead(descriptor)
            raise


def read_tree(root: Path) -> Tree:
    """What is on a mount, each file with its content."""
    found: Tree = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = Path(directory, name)
            status = path.lstat()
            key = str(path.relative_to(root))
            if stat.S_ISLNK(status.st_mode):
                found[key] = f"-> {os.readlink(path)}"
            elif stat.S_ISDIR(status.st_mode):
                found[key] = DIRECTORY
            else:
                found[key] = Holds((path.read_bytes(),))
    return found


def _difference(expected: Tree, found: Tree) -> str:
    problems: list[str] = []
    for path in sorted(expected.keys() | found.keys()):
        wanted, got = expected.get(path), found.get(path)
        if isinstance(wanted, Holds) and isinstance(got, Holds):
            if not wanted.allows(got.contents[0]):
                problems.append(f"{path}: {got} instead of {wanted}")
        elif wanted != got:
            problems.append(f"{path}: {got} instead of {wanted}")
    return "; ".join(problems)


def _close_dead(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return  # the kernel has let it go all the same
