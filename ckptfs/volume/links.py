"""Names given back and taken away behind the back of programs: by recovery, ``undelete``, ``previous`` and ``fsck``.

What :mod:`ckptfs.volume.namespace` does for programs, without its log and without its refusals: the caller has decided.
Every function keeps entries, link counts and the times of directories in step, within the transaction of the caller.
"""

from __future__ import annotations

from sqlalchemy import Connection

from ckptfs.meta import inodes, names
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.names import EntryRow
from ckptfs.meta.schema import ROOT_INO


def is_live_directory(connection: Connection, ino: int) -> bool:
    """Whether the inode is a directory that can take names: the root, or one that has a name itself."""
    row = inodes.find(connection, ino)
    return row is not None and row.is_directory and (ino == ROOT_INO or bool(names.of_inode(connection, ino)))


def give_name(connection: Connection, row: InodeRow, parent: int, name: bytes, now_ns: int) -> None:
    """Enter an inode under a free name. A directory must have no other; it comes back empty."""
    names.add(connection, parent, name, row.ino)
    if row.is_directory:
        inodes.set_links(connection, row.ino, 2, now_ns)
    else:
        inodes.add_links(connection, row.ino, 1, now_ns)
    inodes.touch_directory(connection, parent, now_ns, links=int(row.is_directory))


def take_name(connection: Connection, row: InodeRow, entry: EntryRow, now_ns: int) -> None:
    """Take one name away. A directory must be empty."""
    names.remove(connection, entry)
    if row.is_directory:
        inodes.set_links(connection, row.ino, 0, now_ns)
    else:
        inodes.add_links(connection, row.ino, -1, now_ns)
    inodes.touch_directory(connection, entry.parent, now_ns, links=-int(row.is_directory))


def move_name(connection: Connection, row: InodeRow, entry: EntryRow, parent: int, name: bytes, now_ns: int) -> None:
    """Give a name of the inode another place, which must be free and, for a directory, not inside it."""
    names.move(connection, entry, parent, name)
    crossing = int(row.is_directory and entry.parent != parent)
    inodes.touch_directory(connection, entry.parent, now_ns, links=-crossing)
    inodes.touch_directory(connection, parent, now_ns, links=crossing)
    inodes.set_changed(connection, row.ino, now_ns)


def swap_names(
    connection: Connection, one: InodeRow, entry: EntryRow, other: InodeRow, other_entry: EntryRow, now_ns: int
) -> None:
    """Let two names swap what they mean; neither inode may be a directory that the other's name lies in."""
    names.point(connection, entry, other.ino)
    names.point(connection, other_entry, one.ino)
    crossing = 0 if entry.parent == other_entry.parent else int(one.is_directory) - int(other.is_directory)
    inodes.touch_directory(connection, entry.parent, now_ns, links=-crossing)
    inodes.touch_directory(connection, other_entry.parent, now_ns, links=crossing)
    for row in (one, other):
        inodes.set_changed(connection, row.ino, now_ns)


def content_changed(connection: Connection, ino: int, now_ns: int) -> None:
    """The inode shows another generation: mtime and ctime."""
    inodes.set_columns(connection, ino, {"mtime_ns": now_ns, "ctime_ns": now_ns})
