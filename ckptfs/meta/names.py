"""Queries about names: which inode a name means, what a directory holds, where an inode is named."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, delete, exists, func, insert, select, update

from ckptfs.meta import inodes
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.schema import ROOT_INO, entry, removal


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One name. ``cookie`` is its readdir position."""

    cookie: int
    parent: int
    name: bytes
    ino: int


_columns = (entry.c.cookie, entry.c.parent, entry.c.name, entry.c.ino)
_of_name = select(*_columns).where(entry.c.parent == bindparam("p"), entry.c.name == bindparam("n"))
_inode_of_name = inodes.selection.join(entry, entry.c.ino == inodes.ino_column).where(
    entry.c.parent == bindparam("p"), entry.c.name == bindparam("n")
)
_page = (
    inodes.selection.join(entry, entry.c.ino == inodes.ino_column)
    .add_columns(*_columns)
    .where(entry.c.parent == bindparam("p"), entry.c.cookie > bindparam("after"))
    .order_by(entry.c.cookie)
    .limit(bindparam("max"))
)
_add = insert(entry).returning(entry.c.cookie)
_remove = delete(entry).where(entry.c.cookie == bindparam("k"))
_move = update(entry).where(entry.c.cookie == bindparam("k")).values(parent=bindparam("p"), name=bindparam("n"))
_point = update(entry).where(entry.c.cookie == bindparam("k")).values(ino=bindparam("i"))
_any_in = select(exists().where(entry.c.parent == bindparam("p")))
_of_inode = select(*_columns).where(entry.c.ino == bindparam("i")).order_by(entry.c.cookie)


def find(connection: Connection, parent: int, name: bytes) -> EntryRow | None:
    """The entry of ``name`` in directory ``parent``."""
    row = connection.execute(_of_name, {"p": parent, "n": name}).first()
    return None if row is None else EntryRow(*row)


def find_inode(connection: Connection, parent: int, name: bytes) -> InodeRow | None:
    """The inode that ``name`` in directory ``parent`` means."""
    row = connection.execute(_inode_of_name, {"p": parent, "n": name}).first()
    return None if row is None else InodeRow(*row)


def page(connection: Connection, parent: int, after_cookie: int, limit: int) -> list[tuple[EntryRow, InodeRow]]:
    """Up to ``limit`` entries of ``parent`` after the readdir position ``after_cookie``, in order of position."""
    rows = connection.execute(_page, {"p": parent, "after": after_cookie, "max": limit})
    width = len(inodes.selection.selected_columns)
    return [(EntryRow(*row[width:]), InodeRow(*row[:width])) for row in rows]


def add(connection: Connection, parent: int, name: bytes, ino: int) -> None:
    """Enter ``name`` in ``parent``."""
    connection.execute(_add, {"parent": parent, "name": name, "ino": ino})


def remove(connection: Connection, found: EntryRow) -> None:
    """Take an entry away."""
    connection.execute(_remove, {"k": found.cookie})


def move(connection: Connection, found: EntryRow, parent: int, name: bytes) -> None:
    """Give an entry another directory or name. It keeps its position, so that a loop over readdir that renames ends."""
    connection.execute(_move, {"k": found.cookie, "p": parent, "n": name})


def point(connection: Connection, found: EntryRow, ino: int) -> None:
    """Let an entry mean another inode."""
    connection.execute(_point, {"k": found.cookie, "i": ino})


def is_empty(connection: Connection, directory: int) -> bool:
    """Whether a directory has no entry."""
    return not connection.execute(_any_in, {"p": directory}).scalar_one()


def of_inode(connection: Connection, ino: int) -> list[EntryRow]:
    """Every entry that means ``ino``, oldest position first."""
    return [EntryRow(*row) for row in connection.execute(_of_inode, {"i": ino})]


def resolve(connection: Connection, path: bytes) -> InodeRow | None:
    """The inode at ``path``, relative to the root of the volume; symbolic links are not followed."""
    found = inodes.find(connection, ROOT_INO)
    for part in filter(None, path.split(b"/")):
        found = (
            None
            if found is None or part == b".."
            else found
            if part == b"."
            else find_inode(connection, found.ino, part)
        )
    return found


def path_of_directory(connection: Connection, directory: int) -> bytes:
    """The path of a directory from the root (``b""`` for the root), also of one that is in the removal log.

    A part that is known no more reads ``?``.
    """
    parts: list[bytes] = []
    while directory != ROOT_INO and len(parts) < 4096:
        above = connection.execute(select(entry.c.parent, entry.c.name).where(entry.c.ino == directory)).first()
        if above is None:
            above = connection.execute(
                select(removal.c.parent, removal.c.name)
                .where(removal.c.ino == directory)
                .order_by(removal.c.tick.desc())
                .limit(1)
            ).first()
        if above is None:
            parts.append(b"?")
            break
        directory = above[0]
        parts.append(above[1])
    return b"/".join(reversed(parts))


def path_of_name(connection: Connection, parent: int, name: bytes) -> bytes:
    """The path of ``name`` in ``parent`` from the root."""
    above = path_of_directory(connection, parent)
    return above + b"/" + name if above else name


def path_of_inode(connection: Connection, ino: int) -> bytes:
    """One path of ``ino`` (its oldest name), or ``b""`` for the root and for an inode without a name."""
    found = of_inode(connection, ino)
    return path_of_name(connection, found[0].parent, found[0].name) if found else b""


def is_inside(connection: Connection, ino: int, directory: int) -> bool:
    """Whether ``ino`` is ``directory`` or lies somewhere below it."""
    steps = 0
    while ino != directory:
        above = connection.execute(select(entry.c.parent).where(entry.c.ino == ino)).scalar()
        steps += 1
        if above is None or ino == ROOT_INO or steps > 4096:
            return False
        ino = above
    return True


def unsealed_in(connection: Connection, directory: int, candidates: set[int]) -> set[int]:
    """Those of the inodes ``candidates`` that ``directory`` names."""
    rows = connection.execute(select(entry.c.ino).where(entry.c.parent == directory, entry.c.ino.in_(candidates)))
    return set(rows.scalars())


def everything(connection: Connection) -> list[EntryRow]:
    """Every entry of the volume, oldest position first."""
    return [EntryRow(*row) for row in connection.execute(select(*_columns).order_by(entry.c.cookie))]


def count(connection: Connection) -> int:
    """How many entries the volume has."""
    return connection.execute(select(func.count()).select_from(entry)).scalar_one()
