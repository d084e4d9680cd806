"""The schema, table by table, and its versions.

Names are bytes (POSIX names need not be text). Times are nanoseconds since the epoch. A *tick* is a value of the one counter in
``clock``: it orders events of one history, also across restarts (docs/crash-consistency.md).

Version history: 1, the first.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    insert,
)

SCHEMA_VERSION = 1
ROOT_INO = 1

_Id = BigInteger().with_variant(Integer, "sqlite")  # SQLite gives row ids to INTEGER only

tables = MetaData()


class State(StrEnum):
    """Where a generation is on its way from memory to its last place."""

    LANDING = "landing"
    """Some of its bytes or its size may not be on disk."""
    SEALED = "sealed"
    """All of it is on disk, in its image."""
    PACKED = "packed"
    """All of it is in the packed tiers; an image is optional. No generation is in this version."""


class RemovalKind(StrEnum):
    """How a name lost what it named."""

    UNLINKED = "unlinked"
    """unlink or rmdir."""
    REPLACED = "replaced"
    """O_TRUNC gave the inode a new generation; the record names the old one."""
    RENAMED_OVER = "renamed_over"
    """Another name was renamed onto this one; the record knows the winner and where it came from."""
    EXCHANGED = "exchanged"
    """Two names swapped what they name."""


clock = Table(
    "clock",
    tables,
    Column("id", Integer, primary_key=True),  # always 1
    Column("tick", BigInteger, nullable=False),  # the last tick given out
)

run = Table(
    "run",  # one row for each time a process served the volume
    tables,
    Column("id", _Id, primary_key=True),
    Column("instance", Text),  # boot id and mount ids; NULL where the kernel cannot tell mounts apart
    Column("started_ns", BigInteger, nullable=False),
    Column("clean", Boolean, nullable=False),  # true once everything was sealed and the process ended as it should
    sqlite_autoincrement=True,  # an id is never used twice
)

inode = Table(
    "inode",
    tables,
    Column("ino", _Id, primary_key=True),  # as in stat(2); 1 is the root
    Column("mode", Integer, nullable=False),  # type and permission bits
    Column("uid", BigInteger, nullable=False),
    Column("gid", BigInteger, nullable=False),
    Column("rdev", BigInteger, nullable=False),  # of a device node, else 0
    Column("nlink", Integer, nullable=False),  # 0: no name; kept by the removal log, the quarantine or an open handle
    Column("atime_ns", BigInteger, nullable=False),
    Column("mtime_ns", BigInteger, nullable=False),
    Column("ctime_ns", BigInteger, nullable=False),
    Column("target", LargeBinary),  # of a symbolic link
    sqlite_autoincrement=True,  # an id is never used twice
)

entry = Table(
    "entry",  # one name in one directory
    tables,
    Column("cookie", _Id, primary_key=True),  # the readdir position: never changes while the name lives
    Column("parent", BigInteger, ForeignKey("inode.ino"), nullable=False),
    Column("name", LargeBinary, nullable=False),
    Column("ino", BigInteger, ForeignKey("inode.ino"), nullable=False),
    UniqueConstraint("parent", "name"),
    Index("entry_in_order", "parent", "cookie"),
    Index("entry_of_inode", "ino"),
    sqlite_autoincrement=True,  # an id is never used twice
)

xattr = Table(
    "xattr",
    tables,
    Column("ino", BigInteger, ForeignKey("inode.ino"), primary_key=True),
    Column("name", LargeBinary, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

generation = Table(
    "generation",  # one version of a regular file's content
    tables,
    Column("id", _Id, primary_key=True),
    Column("ino", BigInteger, ForeignKey("inode.ino"), nullable=False),
    Column("current", Boolean, nullable=False),  # what the inode shows; the others are in the log or in quarantine
    Column("state", Text, nullable=False),  # State
    Column("size", BigInteger, nullable=False),  # bytes, as of the last flushed mark, truncate or seal
    Column("sealed_size", BigInteger),  # bytes on disk for certain; NULL: never sealed
    Column("flushed", Boolean, nullable=False),  # no write came after the last FLUSH; false: torn if the writer is gone
    Column("unsealed_since", BigInteger),  # tick; NULL exactly when state is not landing
    Column("acknowledged_parent", BigInteger),  # where an fsync found it while it was still empty
    Column("acknowledged_name", LargeBinary),
    Column("created_ns", BigInteger, nullable=False),
    Index("generation_of_inode", "ino"),
    Index("generation_unsealed", "unsealed_since"),
    sqlite_autoincrement=True,  # an id is never used twice
)

image = Table(
    "image",  # the local, striped copy of a generation; at most one a generation
    tables,
    Column("id", _Id, primary_key=True),  # names its lanes
    Column("generation", BigInteger, ForeignKey("generation.id")),  # NULL: dropping, lanes to be unlinked
    Column("chunk_size", BigInteger, nullable=False),  # bytes
    Column("first", Integer, nullable=False),  # lane of chunk 0
    Column("stripes", Text, nullable=False),  # stripe numbers of lane 0, 1, ...: "2 3 0 1"; as many as the width
    Column("lane_sizes", Text),  # bytes in lane 0, 1, ... at the last seal: "8388608 4096"; NULL: never sealed whole
    Column("owner", Text, nullable=False),  # node (host name) whose stripes hold it
    Column("boot_id", Text, nullable=False),  # of that node when the image was made
    Index("image_of_generation", "generation", unique=True),
    sqlite_autoincrement=True,  # an id is never used twice
)

removal = Table(
    "removal",  # the removal log
    tables,
    Column("tick", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),  # RemovalKind
    Column("parent", BigInteger, nullable=False),  # the directory and name that lost something
    Column("name", LargeBinary, nullable=False),
    Column("ino", BigInteger, nullable=False),  # what they named
    Column("generation", BigInteger),  # kind replaced: the old generation
    Column("source_parent", BigInteger),  # kinds renamed_over and exchanged: where the winner came from
    Column("source_name", LargeBinary),
    # kinds renamed_over and exchanged: the inode that has the name since; replaced: the new generation
    Column("winner", BigInteger),
    Column("removed_ns", BigInteger, nullable=False),
    Column("acknowledged", Boolean, nullable=False),  # an fsync made the change final: never undone by recovery
    Index("removal_of_name", "parent", "name"),
    Index("removal_of_inode", "ino"),
    Index("removal_of_winner", "winner"),
)

quarantine = Table(
    "quarantine",  # generations that recovery did not trust
    tables,
    Column("generation", BigInteger, ForeignKey("generation.id"), primary_key=True),
    Column("parent", BigInteger, nullable=False),  # where it was found
    Column("name", LargeBinary, nullable=False),
    Column("reason", Text, nullable=False),  # a sentence for people
    Column("quarantined_ns", BigInteger, nullable=False),
)

schema_version = Table(
    "schema_version",
    tables,
    Column("id", Integer, primary_key=True),  # always 1
    Column("version", Integer, nullable=False),
)


def _create_first_version(connection: Connection) -> None:
    now_ns = time.time_ns()
    tables.create_all(connection)
    connection.execute(insert(clock).values(id=1, tick=0))
    connection.execute(insert(schema_version).values(id=1, version=0))
    connection.execute(
        insert(inode).values(
            ino=ROOT_INO,
            mode=stat.S_IFDIR | 0o755,
            uid=os.getuid(),
            gid=os.getgid(),
            rdev=0,
            nlink=2,
            atime_ns=now_ns,
            mtime_ns=now_ns,
            ctime_ns=now_ns,
        )
    )


MIGRATIONS: Mapping[int, Callable[[Connection], None]] = {1: _create_first_version}
"""From version n - 1 to version n. Frozen once released: a migration never uses the tables above as they are later."""
