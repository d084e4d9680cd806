"""Whole directory trees as values, to be compared."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

Described = dict[str, tuple[object, ...]]


def describe(root: Path, *, times: bool = True, owners: bool = True) -> Described:
    """Everything below ``root`` that a copy should carry: type, mode, owner, size, mtime, xattrs, link target, digest.

    Hard links show as the first name (in order) of their inode. Directories have no size and no link count worth comparing.
    """
    found: Described = {}
    first_names: dict[int, str] = {}
    for directory, subdirectories, files in os.walk(root):
        subdirectories.sort()
        for name in sorted([*subdirectories, *files]):
            path = Path(directory, name)
            key = str(path.relative_to(root))
            found[key] = _describe(path, key, first_names, times, owners)
    return found


def _describe(path: Path, key: str, first_names: dict[int, str], times: bool, owners: bool) -> tuple[object, ...]:
    status = path.lstat()
    kind = stat.S_IFMT(status.st_mode)
    words: list[object] = [oct(status.st_mode)]
    if owners:
        words += [status.st_uid, status.st_gid]
    if times:
        words.append(status.st_mtime_ns)
    if kind == stat.S_IFLNK:
        return (*words, os.readlink(path))
    words.append({name: os.getxattr(path, name) for name in sorted(os.listxattr(path))})
    if kind == stat.S_IFREG:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        words += [status.st_size, status.st_nlink, first_names.setdefault(status.st_ino, key), digest]
    elif kind in {stat.S_IFCHR, stat.S_IFBLK}:
        words.append(status.st_rdev)
    return tuple(words)
