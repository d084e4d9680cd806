"""Changes of names, each the body of one transaction: it checks, changes, logs what a name loses, and says what happened.

Whatever a name loses goes into the removal log in the same transaction (docs/crash-consistency.md), so that recovery and
``ckptfs undelete`` can give it back. The functions know neither buffers nor lanes; open files are the business of the caller.
"""

from __future__ import annotations

import stat

from sqlalchemy import Connection

from ckptfs.errors import (
    InvalidArgument,
    IsADirectory,
    NameExists,
    NameNotFound,
    NameTooLong,
    NotADirectory,
    NotEmpty,
    NotPermitted,
    StaleInode,
    TooManyLinks,
)
from ckptfs.meta import generations, inodes, names, removals
from ckptfs.meta.generations import GenerationRow
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.names import EntryRow
from ckptfs.meta.schema import RemovalKind
from ckptfs.volume.attributes import Caller, RenameMode

NAME_MAX_BYTES = 255
TARGET_MAX_BYTES = 4095
LINK_MAX = 2**31 - 1


def the_inode(connection: Connection, ino: int) -> InodeRow:
    """The inode, which must exist. Raises :class:`StaleInode`."""
    found = inodes.find(connection, ino)
    if found is None:
        raise StaleInode(f"inode {ino} is gone")
    return found


def the_named(connection: Connection, parent: int, name: bytes) -> InodeRow:
    """The inode that a name means. Raises :class:`NameNotFound`, :class:`NameTooLong`."""
    _check_name(name)
    found = names.find_inode(connection, parent, name)
    if found is None:
        raise NameNotFound(f"no {name!r} in directory {parent}")
    return found


def create(
    connection: Connection,
    parent: int,
    name: bytes,
    mode: int,
    caller: Caller,
    now_ns: int,
    *,
    rdev: int = 0,
    target: bytes | None = None,
) -> tuple[InodeRow, GenerationRow | None]:
    """Make an inode of the type in ``mode`` under a free name; a regular file gets its first generation.

    In a setgid directory the group is the directory's, and a new directory is setgid too.
    """
    _check_name(name)
    if target is not None and not 0 < len(target) <= TARGET_MAX_BYTES:
        raise NameTooLong(f"a symbolic link's target has 1 to {TARGET_MAX_BYTES} bytes, not {len(target)}")
    above = _the_directory(connection, parent)
    if names.find(connection, parent, name) is not None:
        raise NameExists(f"{name!r} is there already")
    is_directory = stat.S_ISDIR(mode)
    gid = caller.gid
    if above.mode & stat.S_ISGID:
        gid = above.gid
        mode |= stat.S_ISGID if is_directory else 0
    ino = inodes.add(
        connection,
        mode=mode,
        uid=caller.uid,
        gid=gid,
        now_ns=now_ns,
        nlink=2 if is_directory else 1,
        rdev=rdev,
        target=target,
    )
    generation = generations.add(connection, ino, now_ns) if stat.S_ISREG(mode) else None
    names.add(connection, parent, name, ino)
    inodes.touch_directory(connection, parent, now_ns, links=1 if is_directory else 0)
    shown = (None, None) if generation is None else (generation.id, 0)
    links = 2 if is_directory else 1
    row = InodeRow(ino, mode, caller.uid, gid, rdev, links, now_ns, now_ns, now_ns, target, *shown)
    return row, generation


def link(connection: Connection, ino: int, parent: int, name: bytes, now_ns: int) -> InodeRow:
    """Give an inode one more name."""
    _check_name(name)
    found = the_inode(connection, ino)
    if found.is_directory:
        raise NotPermitted("a directory has one name only")
    if found.nlink >= LINK_MAX:
        raise TooManyLinks(f"inode {ino} has {found.nlink} names")
    if found.nlink == 0:
        raise NameNotFound(f"inode {ino} was removed and cannot be named again; use ckptfs undelete")
    _the_directory(connection, parent)
    if names.find(connection, parent, name) is not None:
        raise NameExists(f"{name!r} is there already")
    names.add(connection, parent, name, ino)
    inodes.add_links(connection, ino, 1, now_ns)
    inodes.touch_directory(connection, parent, now_ns)
    return the_inode(connection, ino)


def unlink(connection: Connection, parent: int, name: bytes, now_ns: int) -> int:
    """Remove the name of anything but a directory; returns the inode it meant."""
    found = the_named(connection, parent, name)
    if found.is_directory:
        raise IsADirectory(f"{name!r} is a directory")
    _remove_name(connection, _the_entry(connection, parent, name), now_ns)
    inodes.add_links(connection, found.ino, -1, now_ns)
    inodes.touch_directory(connection, parent, now_ns)
    return found.ino


def rmdir(connection: Connection, parent: int, name: bytes, now_ns: int) -> int:
    """Remove an empty directory; returns its inode."""
    found = the_named(connection, parent, name)
    if not found.is_directory:
        raise NotADirectory(f"{name!r} is not a directory")
    if not names.is_empty(connection, found.ino):
        raise NotEmpty(f"{name!r} is not empty")
    _remove_name(connection, _the_entry(connection, parent, name), now_ns)
    inodes.set_links(connection, found.ino, 0, now_ns)
    inodes.touch_directory(connection, parent, now_ns, links=-1)
    return found.ino


def rename(
    connection: Connection, parent: int, name: bytes, new_parent: int, new_name: bytes, mode: RenameMode, now_ns: int
) -> set[int]:
    """Move, replace or exchange a name; returns the inodes whose ctime changed."""
    moved = the_named(connection, parent, name)
    _check_name(new_name)
    _the_directory(connection, new_parent)
    source = _the_entry(connection, parent, name)
    destination = names.find(connection, new_parent, new_name)
    if mode is RenameMode.EXCHANGE:
        if destination is None:
            raise NameNotFound(f"no {new_name!r} to exchange with")
        return _exchange(connection, source, moved, destination, now_ns)
    if destination is not None and mode is RenameMode.NO_REPLACE:
        raise NameExists(f"{new_name!r} is there already")
    if destination is not None and destination.ino == moved.ino:
        return set()  # POSIX: two names of one inode, nothing happens
    if moved.is_directory and names.is_inside(connection, new_parent, moved.ino):
        raise InvalidArgument("a directory cannot be moved into itself")
    if destination is None:
        names.move(connection, source, new_parent, new_name)
        changed = {moved.ino}
    else:
        loser = the_inode(connection, destination.ino)
        _check_replaceable(connection, moved, loser, new_name)
        removals.add(
            connection,
            RemovalKind.RENAMED_OVER,
            parent=new_parent,
            name=new_name,
            ino=loser.ino,
            now_ns=now_ns,
            source_parent=parent,
            source_name=name,
            winner=moved.ino,
        )
        names.remove(connection, source)
        names.point(connection, destination, moved.ino)
        if loser.is_directory:
            inodes.set_links(connection, loser.ino, 0, now_ns)
            inodes.touch_directory(connection, new_parent, now_ns, links=-1)
        else:
            inodes.add_links(connection, loser.ino, -1, now_ns)
        changed = {moved.ino, loser.ino}
    inodes.set_changed(connection, moved.ino, now_ns)
    crossing = 1 if moved.is_directory and parent != new_parent else 0
    inodes.touch_directory(connection, parent, now_ns, links=-crossing)
    inodes.touch_directory(connection, new_parent, now_ns, links=crossing)
    return changed


def replace_generation(connection: Connection, ino: int, now_ns: int, damaged: bool) -> GenerationRow:
    """O_TRUNC: the inode shows a new, empty generation, which is returned; the old one goes into the log.

    The new one is not flushed: whoever opened it has yet to write it, and a daemon that dies before that must not cost the old one.
    A ``damaged`` one (a lane failed) is worth nothing: it goes for good, and what it had replaced is now what the new one replaces.
    """
    old = generations.current(connection, ino)
    generations.set_current(connection, ino, None)
    new = generations.add(connection, ino, now_ns, flushed=False)
    named = names.of_inode(connection, ino)
    if old is not None:
        if damaged:
            removals.set_winner(connection, old.id, new.id)
            generations.remove(connection, old.id)
        elif named:
            removals.add(
                connection,
                RemovalKind.REPLACED,
                parent=named[0].parent,
                name=named[0].name,
                ino=ino,
                now_ns=now_ns,
                generation_id=old.id,
                winner=new.id,
            )
        else:
            generations.remove(connection, old.id)
    row = the_inode(connection, ino)
    inodes.set_times(connection, ino, row.atime_ns, now_ns, now_ns)
    return new


def _exchange(
    connection: Connection, source: EntryRow, moved: InodeRow, destination: EntryRow, now_ns: int
) -> set[int]:
    other = the_inode(connection, destination.ino)
    if moved.ino == other.ino:
        return set()
    for one, place in ((moved, destination.parent), (other, source.parent)):
        if one.is_directory and names.is_inside(connection, place, one.ino):
            raise InvalidArgument("a directory cannot be exchanged with something inside it")
    removals.add(
        connection,
        RemovalKind.EXCHANGED,
        parent=destination.parent,
        name=destination.name,
        ino=other.ino,
        now_ns=now_ns,
        source_parent=source.parent,
        source_name=source.name,
        winner=moved.ino,
    )
    names.point(connection, source, other.ino)
    names.point(connection, destination, moved.ino)
    crossing = 0 if source.parent == destination.parent else int(moved.is_directory) - int(other.is_directory)
    inodes.touch_directory(connection, source.parent, now_ns, links=-crossing)
    inodes.touch_directory(connection, destination.parent, now_ns, links=crossing)
    for one in (moved.ino, other.ino):
        inodes.set_changed(connection, one, now_ns)
    return {moved.ino, other.ino}


def _check_replaceable(connection: Connection, moved: InodeRow, loser: InodeRow, name: bytes) -> None:
    if moved.is_directory and not loser.is_directory:
        raise NotADirectory(f"{name!r} is not a directory")
    if loser.is_directory and not moved.is_directory:
        raise IsADirectory(f"{name!r} is a directory")
    if loser.is_directory and not names.is_empty(connection, loser.ino):
        raise NotEmpty(f"{name!r} is not empty")


def _remove_name(connection: Connection, found: EntryRow, now_ns: int) -> None:
    removals.add(connection, RemovalKind.UNLINKED, parent=found.parent, name=found.name, ino=found.ino, now_ns=now_ns)
    names.remove(connection, found)


def _the_entry(connection: Connection, parent: int, name: bytes) -> EntryRow:
    found = names.find(connection, parent, name)
    if found is None:
        raise NameNotFound(f"no {name!r} in directory {parent}")
    return found


def _the_directory(connection: Connection, ino: int) -> InodeRow:
    found = the_inode(connection, ino)
    if not found.is_directory:
        raise NotADirectory(f"inode {ino} is not a directory")
    if found.nlink == 0:
        raise NameNotFound(f"directory {ino} was removed")
    return found


def _check_name(name: bytes) -> None:
    if len(name) > NAME_MAX_BYTES:
        raise NameTooLong(f"a name has at most {NAME_MAX_BYTES} bytes, not {len(name)}")
