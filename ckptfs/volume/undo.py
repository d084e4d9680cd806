"""Undoing removals after a loss of power: what was removed while something was unsealed comes back.

Newest first, a record at a time, and over again while that makes progress (undoing one can make room for another), so
that doing it twice changes nothing. The rule for each: a name that is free takes its inode back; a rename is undone
only while the winner still has the name, and the winner goes back to where it came from; a symbolic link that was made
under an unlinked name (``unlink`` and ``symlink`` move a pointer on) yields it, and goes into the log. What cannot be
undone stays in the log, where ``undelete`` finds it.
"""

from __future__ import annotations

import stat

from sqlalchemy import Connection

from ckptfs.meta import inodes, names, removals
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.names import EntryRow
from ckptfs.meta.removals import RemovalRow
from ckptfs.meta.schema import RemovalKind
from ckptfs.volume import links


def undo(connection: Connection, records: list[RemovalRow], now_ns: int) -> list[RemovalRow]:
    """Undo what can be undone of ``records`` (newest first), taking it out of the log; returns it in the order done."""
    waiting = records
    done: list[RemovalRow] = []
    while True:
        left: list[RemovalRow] = []
        for record in waiting:
            if _undo_one(connection, record, now_ns):
                removals.remove(connection, record.tick)
                done.append(record)
            else:
                left.append(record)
        if len(left) == len(waiting):
            return done
        waiting = left


def _undo_one(connection: Connection, record: RemovalRow, now_ns: int) -> bool:
    lost = inodes.find(connection, record.ino)
    if lost is None or (lost.is_regular and lost.generation is None):
        return False  # nothing to give back: what there was is in quarantine
    if not links.is_live_directory(connection, record.parent):
        return False
    entry = names.find(connection, record.parent, record.name)
    if record.kind is RemovalKind.EXCHANGED:
        return _undo_exchange(connection, record, lost, entry, now_ns)
    if lost.is_directory and lost.nlink:
        return False  # it has a name already, and cannot have two
    if entry is not None and not (
        _send_winner_back(connection, record, entry, now_ns) or _remove_pointer(connection, record, entry, now_ns)
    ):
        return False
    links.give_name(connection, lost, record.parent, record.name, now_ns)
    return True


def _send_winner_back(connection: Connection, record: RemovalRow, entry: EntryRow, now_ns: int) -> bool:
    if record.kind is not RemovalKind.RENAMED_OVER or entry.ino != record.winner:
        return False
    winner = inodes.find(connection, entry.ino)
    if winner is None or record.source_parent is None or record.source_name is None:
        return False
    if not _is_free(connection, record.source_parent, record.source_name):
        return False
    if winner.is_directory and names.is_inside(connection, record.source_parent, winner.ino):
        return False  # where it came from lies in it by now
    links.move_name(connection, winner, entry, record.source_parent, record.source_name, now_ns)
    return True


def _remove_pointer(connection: Connection, record: RemovalRow, entry: EntryRow, now_ns: int) -> bool:
    """Where a pointer is moved on by unlink and symlink, the new link came after the removal that is undone."""
    pointer = inodes.find(connection, entry.ino)
    if record.kind is not RemovalKind.UNLINKED or pointer is None or not stat.S_ISLNK(pointer.mode):
        return False
    removals.add(
        connection,
        RemovalKind.UNLINKED,
        parent=entry.parent,
        name=entry.name,
        ino=pointer.ino,
        now_ns=now_ns,
        acknowledged=True,
    )
    links.take_name(connection, pointer, entry, now_ns)
    return True


def _undo_exchange(
    connection: Connection, record: RemovalRow, lost: InodeRow, entry: EntryRow | None, now_ns: int
) -> bool:
    if record.source_parent is None or record.source_name is None:
        return False
    other_entry = names.find(connection, record.source_parent, record.source_name)
    if other_entry is None or other_entry.ino != lost.ino:
        return False  # it has moved on
    if lost.is_directory and names.is_inside(connection, record.parent, lost.ino):
        return False
    if entry is None:  # what it was exchanged with is in quarantine, or moved on
        links.move_name(connection, lost, other_entry, record.parent, record.name, now_ns)
        return True
    winner = inodes.find(connection, entry.ino)
    if winner is None or winner.ino != record.winner:
        return False
    if winner.is_directory and names.is_inside(connection, record.source_parent, winner.ino):
        return False
    links.swap_names(connection, winner, entry, lost, other_entry, now_ns)
    return True


def _is_free(connection: Connection, parent: int, name: bytes) -> bool:
    return links.is_live_directory(connection, parent) and names.find(connection, parent, name) is None
