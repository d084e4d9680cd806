"""Ending a quarantine: what recovery or fsck did not trust is given back to a name, or freed, as one transaction each.

A content comes back under the name where it was found if that is free, else as ``NAME.restored``; a directory that is gone
is not made again, its contents come back in the root. It keeps its inode where that shows nothing else by now, and gets a
copy of it otherwise. What was torn still says so.
"""

from __future__ import annotations

import itertools
import stat
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection

from ckptfs.image.image import Image
from ckptfs.meta import generations, inodes, names, removals
from ckptfs.meta.generations import GenerationRow
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.schema import ROOT_INO
from ckptfs.volume import links
from ckptfs.volume.namespace import NAME_MAX_BYTES
from ckptfs.volume.reclaim import forget_inode
from ckptfs.volume.recovery import layout_of
from ckptfs.volume.reports import QuarantinedFile


def listed(connection: Connection) -> list[QuarantinedFile]:
    """What is in quarantine, oldest first."""
    return [
        QuarantinedFile(
            generation=row.generation,
            path=names.path_of_name(connection, row.parent, row.name),
            size=row_size,
            reason=row.reason,
            quarantined_s=row.quarantined_ns / 1e9,
        )
        for row in removals.quarantined(connection)
        for row_size in [_size(connection, row.generation)]
    ]


def flush_lanes(rows: Sequence[GenerationRow], stripes: Sequence[Path]) -> None:
    """Make contents durable before they are trusted again: their writer never came to it. Blocks on devices."""
    for row in rows:
        if row.image is None:
            continue
        image = Image(row.image.id, layout_of(row.image), [stripes[number] for number in row.image.stripes])
        try:
            image.truncate(row.size)
            image.sync()
        finally:
            image.close()


def contents(connection: Connection) -> list[GenerationRow]:
    """The generations in quarantine, the latest quarantined first."""
    found = [generations.find(connection, row.generation) for row in reversed(removals.quarantined(connection))]
    return [row for row in found if row is not None]


def restore(connection: Connection, now_ns: int) -> list[bytes]:
    """Give every content in quarantine a name again; returns their paths. :func:`flush_lanes` must have been."""
    restored: list[bytes] = []
    for row in reversed(removals.quarantined(connection)):
        content = generations.find(connection, row.generation)
        removals.release_from_quarantine(connection, row.generation)
        if content is None:
            continue
        parent = row.parent if links.is_live_directory(connection, row.parent) else ROOT_INO
        name = _free_name(connection, parent, row.name)
        inode = _home_of(connection, content, now_ns)
        generations.set_inode(connection, content.id, inode.ino)
        generations.set_current(connection, inode.ino, content.id)
        links.give_name(connection, inode, parent, name, now_ns)
        restored.append(names.path_of_name(connection, parent, name))
    return restored


def discard(connection: Connection) -> int:
    """Drop every content in quarantine, and inodes that nothing else keeps; returns how many contents."""
    rows = removals.quarantined(connection)
    for row in rows:
        content = generations.find(connection, row.generation)
        removals.release_from_quarantine(connection, row.generation)
        if content is None:
            continue
        generations.remove(connection, content.id)
        inode = inodes.find(connection, content.ino)
        if inode is not None and not inode.nlink and not removals.mentions(connection, content.ino):
            forget_inode(connection, content.ino)
    return len(rows)


def _home_of(connection: Connection, content: GenerationRow, now_ns: int) -> InodeRow:
    """The content's inode if it shows nothing and has no name, else a new one like it."""
    own = inodes.find(connection, content.ino)
    if own is not None and not own.nlink and own.generation is None:
        return own
    made = inodes.add(
        connection,
        mode=own.mode if own is not None else stat.S_IFREG | 0o600,
        uid=own.uid if own is not None else 0,
        gid=own.gid if own is not None else 0,
        now_ns=now_ns,
        nlink=0,
    )
    found = inodes.find(connection, made)
    assert found is not None
    return found


def _free_name(connection: Connection, parent: int, name: bytes) -> bytes:
    if names.find(connection, parent, name) is None:
        return name
    for number in itertools.count(1):
        suffix = b".restored" if number == 1 else b".restored-%d" % number
        candidate = name[: NAME_MAX_BYTES - len(suffix)] + suffix
        if names.find(connection, parent, candidate) is None:
            return candidate
    raise AssertionError


def _size(connection: Connection, generation_id: int) -> int:
    row = generations.find(connection, generation_id)
    return 0 if row is None else row.size
