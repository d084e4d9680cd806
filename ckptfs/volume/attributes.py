"""The values that pass between the mount and the volume.

Plain frozen records with no behaviour: what an inode looks like, what a caller wants changed, who asks, what a
directory holds, how much space there is. They know neither FUSE nor the database, so both sides can be tested without
the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Attributes:
    """What ``stat`` shows of an inode.

    ``mode`` holds the file type and the permission bits. ``size`` is in bytes and counts bytes still buffered for every
    handle. ``blocks`` is in units of 512 bytes and never 0 for a file with data, wherever the data is: tar and cp take
    a file with fewer blocks than its size needs for one with holes. Times are nanoseconds since the epoch.
    """

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blocks: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True)
class AttributeChange:
    """What a ``setattr`` asks for; ``None`` leaves a field as it is. One request may change several at once.

    ``mode`` is permission bits, with or without the file type, which cannot change. "Set to now" arrives as the time
    that the mount read from the clock.
    """

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose request it is: the owner of what the request creates, unless a setgid directory decides the group."""

    uid: int
    gid: int


class RenameMode(Enum):
    """What a rename does with a destination that exists."""

    REPLACE = "replace"
    NO_REPLACE = "no-replace"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name in a directory. ``cookie`` (over 0) is where a listing resumes after it, whatever is deleted meanwhile."""

    cookie: int
    name: bytes
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Space:
    """What ``statfs`` shows, in bytes and inodes; ``available_bytes`` ≤ ``free_bytes`` ≤ ``total_bytes``."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    files: int
    files_free: int
