"""Queries about inodes: attributes, link counts, extended attributes."""

from __future__ import annotations

import stat
from dataclasses import dataclass

from sqlalchemy import Connection, bindparam, case, delete, func, insert, select, update

from ckptfs.meta.schema import generation, inode, xattr


@dataclass(frozen=True, slots=True)
class InodeRow:
    """An inode, with the size (bytes) and id of its current generation where it is a regular file."""

    ino: int
    mode: int
    uid: int
    gid: int
    rdev: int
    nlink: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    target: bytes | None
    generation: int | None
    content_size: int | None

    @property
    def size(self) -> int:
        """Bytes, as ``st_size`` has it."""
        return self.content_size or len(self.target or b"")

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_regular(self) -> bool:
        """Whether it is a regular file, which has a generation."""
        return stat.S_ISREG(self.mode)


ino_column = inode.c.ino
selection = select(
    inode.c.ino,
    inode.c.mode,
    inode.c.uid,
    inode.c.gid,
    inode.c.rdev,
    inode.c.nlink,
    inode.c.atime_ns,
    inode.c.mtime_ns,
    inode.c.ctime_ns,
    inode.c.target,
    generation.c.id,
    generation.c.size,
).select_from(inode.outerjoin(generation, (generation.c.ino == inode.c.ino) & generation.c.current))
"""Selects the columns of :class:`InodeRow`, in order; for other query modules to narrow."""

_find = selection.where(inode.c.ino == bindparam("i"))
_add = insert(inode).returning(inode.c.ino)
_touch = update(inode).where(inode.c.ino == bindparam("i")).values(mtime_ns=bindparam("t"), ctime_ns=bindparam("t"))
_touch_and_link = (
    update(inode)
    .where(inode.c.ino == bindparam("i"))
    .values(mtime_ns=bindparam("t"), ctime_ns=bindparam("t"), nlink=inode.c.nlink + bindparam("by"))
)
_times = (
    update(inode)
    .where(inode.c.ino == bindparam("i"))
    .values(atime_ns=bindparam("a"), mtime_ns=bindparam("m"), ctime_ns=bindparam("c"))
)
_link = (
    update(inode)
    .where(inode.c.ino == bindparam("i"))
    .values(nlink=inode.c.nlink + bindparam("by"), ctime_ns=bindparam("t"))
)
_set_links = update(inode).where(inode.c.ino == bindparam("i")).values(nlink=bindparam("n"), ctime_ns=bindparam("t"))
_changed = update(inode).where(inode.c.ino == bindparam("i")).values(ctime_ns=bindparam("t"))
_setgid_executable = stat.S_ISGID | stat.S_IXGRP
_drop_setid = (
    update(inode)
    .where(inode.c.ino == bindparam("i"), inode.c.mode.op("&")(stat.S_ISUID | stat.S_ISGID) != 0)
    .values(
        mode=case(
            (
                inode.c.mode.op("&")(_setgid_executable) == _setgid_executable,
                inode.c.mode.op("&")(~(stat.S_ISUID | stat.S_ISGID)),
            ),
            else_=inode.c.mode.op("&")(~stat.S_ISUID),
        )
    )
)
_get_xattr = select(xattr.c.value).where(xattr.c.ino == bindparam("i"), xattr.c.name == bindparam("n"))


def find(connection: Connection, ino: int) -> InodeRow | None:
    """The inode, or None when there is none."""
    row = connection.execute(_find, {"i": ino}).first()
    return None if row is None else InodeRow(*row)


def add(
    connection: Connection,
    *,
    mode: int,
    uid: int,
    gid: int,
    now_ns: int,
    nlink: int = 1,
    rdev: int = 0,
    target: bytes | None = None,
) -> int:
    """Make an inode; returns its number."""
    values = {
        "mode": mode,
        "uid": uid,
        "gid": gid,
        "rdev": rdev,
        "nlink": nlink,
        "atime_ns": now_ns,
        "mtime_ns": now_ns,
        "ctime_ns": now_ns,
        "target": target,
    }
    return connection.execute(_add, values).scalar_one()


def touch_directory(connection: Connection, ino: int, now_ns: int, links: int = 0) -> None:
    """An entry of the directory changed: mtime and ctime; ``links`` is added to its link count."""
    if links:
        connection.execute(_touch_and_link, {"i": ino, "t": now_ns, "by": links})
    else:
        connection.execute(_touch, {"i": ino, "t": now_ns})


def add_links(connection: Connection, ino: int, by: int, now_ns: int) -> None:
    """Change the link count by ``by`` and set ctime."""
    connection.execute(_link, {"i": ino, "by": by, "t": now_ns})


def set_links(connection: Connection, ino: int, nlink: int, now_ns: int) -> None:
    """Set the link count, and ctime."""
    connection.execute(_set_links, {"i": ino, "n": nlink, "t": now_ns})


def set_changed(connection: Connection, ino: int, now_ns: int) -> None:
    """Set ctime."""
    connection.execute(_changed, {"i": ino, "t": now_ns})


def set_times(connection: Connection, ino: int, atime_ns: int, mtime_ns: int, ctime_ns: int) -> None:
    """Set the three times."""
    connection.execute(_times, {"i": ino, "a": atime_ns, "m": mtime_ns, "c": ctime_ns})


def drop_setid(connection: Connection, ino: int) -> None:
    """Content is about to change: the set-user-id bit goes, and set-group-id where it means execution."""
    connection.execute(_drop_setid, {"i": ino})


def set_columns(connection: Connection, ino: int, columns: dict[str, int]) -> None:
    """Set any of mode, uid, gid, atime_ns, mtime_ns, ctime_ns."""
    connection.execute(update(inode).where(inode.c.ino == ino).values(**columns))


def remove(connection: Connection, ino: int) -> None:
    """Delete an inode and its extended attributes; its generations must be gone."""
    connection.execute(delete(xattr).where(xattr.c.ino == ino))
    connection.execute(delete(inode).where(inode.c.ino == ino))


def everything(connection: Connection) -> list[InodeRow]:
    """Every inode, by number."""
    return [InodeRow(*row) for row in connection.execute(selection.order_by(inode.c.ino))]


def count(connection: Connection) -> int:
    """How many inodes the volume has."""
    return connection.execute(select(func.count()).select_from(inode)).scalar_one()


def get_xattr(connection: Connection, ino: int, name: bytes) -> bytes | None:
    """The value of an extended attribute."""
    return connection.execute(_get_xattr, {"i": ino, "n": name}).scalar()


def list_xattrs(connection: Connection, ino: int) -> list[bytes]:
    """The names of an inode's extended attributes."""
    return list(connection.execute(select(xattr.c.name).where(xattr.c.ino == ino).order_by(xattr.c.name)).scalars())


def set_xattr(connection: Connection, ino: int, name: bytes, value: bytes, now_ns: int) -> None:
    """Set an extended attribute, and ctime."""
    connection.execute(delete(xattr).where(xattr.c.ino == ino, xattr.c.name == name))
    connection.execute(insert(xattr).values(ino=ino, name=name, value=value))
    set_changed(connection, ino, now_ns)


def remove_xattr(connection: Connection, ino: int, name: bytes, now_ns: int) -> bool:
    """Remove an extended attribute; False when there was none."""
    gone = connection.execute(delete(xattr).where(xattr.c.ino == ino, xattr.c.name == name)).rowcount > 0
    if gone:
        set_changed(connection, ino, now_ns)
    return gone
