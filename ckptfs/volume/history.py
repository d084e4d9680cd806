"""Previous versions and removed names, read from the removal log and brought back from it, each as one transaction.

A content comes back in one of two ways. A content that its own inode replaced (O_TRUNC) becomes current again. An inode
that lost the name gets it back. Either way what was there goes into the log in its place, so nothing here loses anything
and everything can be undone by doing it again. What changed is returned, for the caches of the caller and the kernel.

Open files are the business of the caller: nobody may have the file open whose content is exchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import Connection

from ckptfs.errors import IsADirectory, NameNotFound, ProtectedData
from ckptfs.meta import generations, inodes, names, removals
from ckptfs.meta.generations import GenerationRow
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.names import EntryRow
from ckptfs.meta.removals import RemovalRow
from ckptfs.meta.schema import ROOT_INO, RemovalKind, State
from ckptfs.volume import links
from ckptfs.volume.reports import PreviousVersion, RemovedName

_LOST_NAME = (RemovalKind.UNLINKED, RemovalKind.RENAMED_OVER)


@dataclass(slots=True)
class Changed:
    """What a transaction changed behind the back of programs; ``paths`` came back."""

    inodes: set[int] = field(default_factory=set[int])
    names: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    paths: list[bytes] = field(default_factory=list[bytes])


def current_inode(connection: Connection, path: bytes) -> int | None:
    """The inode at ``path``, if there is one."""
    row = names.resolve(connection, path)
    return None if row is None else row.ino


def previous_versions(connection: Connection, path: bytes, window_s: float) -> list[PreviousVersion]:
    """Contents that the file at ``path`` had before, newest first; ``window_s`` is the undelete window.

    Raises :class:`NameNotFound` where nothing is and nothing was, :class:`IsADirectory`.
    """
    place = _Place.of(connection, path)
    if place.row is not None and place.row.is_directory:
        raise IsADirectory(f"{_shown(path)} is a directory; ckptfs undelete lists what was removed from it")
    held = _held_ticks(connection)
    found = [
        PreviousVersion(
            generation=old.id,
            size=old.size,
            state=old.state.value,
            kind=record.kind.value,
            removed_s=record.removed_ns / 1e9,
            expires_s=None if record.tick in held else record.removed_ns / 1e9 + window_s,
        )
        for record, old in _candidates(connection, place)
    ]
    if place.row is None and not found:
        raise NameNotFound(f"there is no {_shown(path)}, and no previous content of it is kept")
    return found


def restore_previous(connection: Connection, path: bytes, now_ns: int) -> Changed:
    """Give ``path`` its newest sealed previous content back; what is there now goes into the log.

    Raises :class:`NameNotFound` when none is kept, :class:`ProtectedData` when the name cannot be given back.
    """
    place = _Place.of(connection, path)
    if place.row is not None and place.row.is_directory:
        raise IsADirectory(f"{_shown(path)} is a directory; ckptfs undelete brings back what was removed from it")
    for record, old in _candidates(connection, place):
        if old.state is State.LANDING or not old.flushed:
            continue
        if not links.is_live_directory(connection, place.parent):
            raise ProtectedData(f"the directory of {_shown(path)} was removed too; ckptfs undelete it first")
        changed = Changed(names=[(place.parent, place.name)], paths=[path])
        if record.kind is RemovalKind.REPLACED:
            _restore_content(connection, place, record, old, now_ns, changed)
        else:
            _restore_inode(connection, place, record, now_ns, changed)
        return changed
    raise NameNotFound(f"no finished previous content of {_shown(path)} is kept")


def removed_names(connection: Connection, path: bytes, window_s: float) -> list[RemovedName]:
    """Names at or below ``path`` that were removed, newest first; ``window_s`` is the undelete window."""
    path = b"/".join(_parts(path))
    below = path + b"/" if path else b""
    held = _held_ticks(connection)
    directories: dict[int, bytes] = {}
    found: list[RemovedName] = []
    for record in removals.everything(connection):
        if record.kind not in _LOST_NAME:
            continue
        if record.parent not in directories:
            directories[record.parent] = names.path_of_directory(connection, record.parent)
        above = directories[record.parent]
        full = above + b"/" + record.name if above else record.name
        row = inodes.find(connection, record.ino)
        if row is None or not _can_come_back(row) or not (full == path or full.startswith(below)):
            continue
        found.append(
            RemovedName(
                path=full,
                size=row.size,
                is_directory=row.is_directory,
                kind=record.kind.value,
                removed_s=record.removed_ns / 1e9,
                expires_s=None if record.tick in held else record.removed_ns / 1e9 + window_s,
            )
        )
    return found


def undelete(connection: Connection, path: bytes, now_ns: int) -> Changed:
    """Bring back what was removed at ``path``: a directory with everything that was removed from it, and so on down.

    Directories above it that were removed come back too, empty. On a directory that is there, what was removed from it
    comes back under names that are free. Raises :class:`ProtectedData` when the name is taken, :class:`NameNotFound`
    when the log has nothing of that name.
    """
    changed = Changed()
    parts = _parts(path)
    directory = ROOT_INO
    for depth, name in enumerate(parts[:-1], start=1):
        there = names.find_inode(connection, directory, name)
        if there is None:
            record = _newest_lost(connection, directory, name, directories_only=True)
            if record is None:
                raise NameNotFound(f"there is no {_shown(b'/'.join(parts[:depth]))}, and it is not kept as removed")
            _give_back(connection, record, now_ns, changed)
            directory = record.ino
        elif there.is_directory:
            directory = there.ino
        else:
            raise ProtectedData(
                f"{_shown(b'/'.join(parts[:depth]))} is a file now, so nothing can come back below it. Move it away first"
            )
    entry = names.find(connection, directory, parts[-1]) if parts else None
    record = _newest_lost(connection, directory, parts[-1]) if parts else None
    if parts and entry is None:
        if record is None:
            raise NameNotFound(f"nothing removed is kept under {_shown(path)}; ckptfs undelete lists what is")
        _give_back(connection, record, now_ns, changed)
        _give_back_below(connection, record.ino, now_ns, changed)
        return changed
    there = inodes.find(connection, entry.ino if entry is not None else ROOT_INO)
    if record is None and there is not None and there.is_directory:
        _give_back_below(connection, there.ino, now_ns, changed)
        if changed.paths:
            return changed
        raise NameNotFound(f"nothing that was removed from {_shown(path)} is kept")
    if record is None:
        raise NameNotFound(f"{_shown(path)} is there; for an earlier content see: ckptfs previous")
    other = "" if record.kind is RemovalKind.UNLINKED else "; or see ckptfs previous, for it was renamed over"
    raise ProtectedData(f"{_shown(path)} is there again. Move it away, then undelete the removed one{other}")


@dataclass(frozen=True, slots=True)
class _Place:
    """A name, and what it means now."""

    parent: int
    name: bytes
    entry: EntryRow | None
    row: InodeRow | None

    @classmethod
    def of(cls, connection: Connection, path: bytes) -> _Place:
        """The place at ``path``, through removed directories too. Raises :class:`NameNotFound`, :class:`IsADirectory`."""
        parts = _parts(path)
        if not parts:
            raise IsADirectory("the root of the volume is a directory")
        parent = ROOT_INO
        for name in parts[:-1]:
            entry = names.find(connection, parent, name)
            record = None if entry is not None else _newest_lost(connection, parent, name, directories_only=True)
            if entry is None and record is None:
                raise NameNotFound(f"there is no {_shown(path)}")
            parent = entry.ino if entry is not None else record.ino if record is not None else parent
        entry = names.find(connection, parent, parts[-1])
        return cls(parent, parts[-1], entry, None if entry is None else inodes.find(connection, entry.ino))


def _candidates(connection: Connection, place: _Place) -> Iterator[tuple[RemovalRow, GenerationRow]]:
    """What the name had before, newest first: records with the contents that they keep."""
    records = {record.tick: record for record in removals.of_name(connection, place.parent, place.name)}
    if place.row is not None:
        # What the inode replaced while it had another name counts as well.
        own = removals.of_inode(connection, place.row.ino)
        records |= {record.tick: record for record in own if record.kind is RemovalKind.REPLACED}
    for tick in sorted(records, reverse=True):
        record = records[tick]
        if record.kind is RemovalKind.REPLACED:
            old = None if record.generation is None else generations.find(connection, record.generation)
            if old is not None and (place.row is None or place.row.is_regular):
                yield record, old
        elif record.kind in _LOST_NAME and (place.row is None or place.row.ino != record.ino):
            old = generations.current(connection, record.ino)
            if old is not None:
                yield record, old


def _restore_content(
    connection: Connection, place: _Place, record: RemovalRow, old: GenerationRow, now_ns: int, changed: Changed
) -> None:
    """Make a replaced content current again, for the inode that has the name."""
    if place.row is None:
        lost = inodes.find(connection, record.ino)
        if lost is None or lost.nlink:
            raise ProtectedData(
                f"{_shown(place.name)} is gone, and its previous content belongs to a file that has another name now: "
                "restore it there"
            )
        links.give_name(connection, lost, place.parent, place.name, now_ns)
        for other in removals.of_name(connection, place.parent, place.name):
            if other.ino == lost.ino and other.kind in _LOST_NAME:
                removals.remove(connection, other.tick)
        ino = lost.ino
    else:
        ino = place.row.ino
    now = generations.current(connection, ino)
    removals.remove(connection, record.tick)
    generations.set_inode(connection, old.id, ino)
    generations.set_current(connection, ino, old.id)
    if now is not None:
        removals.add(
            connection,
            RemovalKind.REPLACED,
            parent=place.parent,
            name=place.name,
            ino=ino,
            now_ns=now_ns,
            generation_id=now.id,
            winner=old.id,
        )
        removals.acknowledge_replacement(connection, old.id)  # decided by a person: recovery must not undo it
    links.content_changed(connection, ino, now_ns)
    changed.inodes |= {ino, place.parent}


def _restore_inode(connection: Connection, place: _Place, record: RemovalRow, now_ns: int, changed: Changed) -> None:
    """Give the name back to the inode that lost it; the one that has it loses it, as by unlink."""
    lost = inodes.find(connection, record.ino)
    assert lost is not None  # it has a current content
    removals.remove(connection, record.tick)
    if place.row is not None and place.entry is not None:
        removals.add(
            connection,
            RemovalKind.UNLINKED,
            parent=place.parent,
            name=place.name,
            ino=place.row.ino,
            now_ns=now_ns,
        )
        links.take_name(connection, place.row, place.entry, now_ns)
        changed.inodes.add(place.row.ino)
    links.give_name(connection, lost, place.parent, place.name, now_ns)
    changed.inodes |= {lost.ino, place.parent}


def _newest_lost(
    connection: Connection, parent: int, name: bytes, *, directories_only: bool = False
) -> RemovalRow | None:
    """The newest record by which the name lost an inode that can be named again."""
    for record in removals.of_name(connection, parent, name):
        if record.kind in _LOST_NAME:
            row = inodes.find(connection, record.ino)
            if row is not None and _can_come_back(row) and (row.is_directory or not directories_only):
                return record
    return None


def _can_come_back(row: InodeRow) -> bool:
    if row.is_directory:
        return row.nlink == 0  # a directory has one name only
    return not row.is_regular or row.generation is not None


def _give_back(connection: Connection, record: RemovalRow, now_ns: int, changed: Changed) -> None:
    row = inodes.find(connection, record.ino)
    assert row is not None
    removals.remove(connection, record.tick)
    links.give_name(connection, row, record.parent, record.name, now_ns)
    changed.inodes |= {row.ino, record.parent}
    changed.names.append((record.parent, record.name))
    changed.paths.append(names.path_of_name(connection, record.parent, record.name))


def _give_back_below(connection: Connection, directory: int, now_ns: int, changed: Changed) -> None:
    """Bring back what was removed from a directory, under names that are free, newest first, and so on down."""
    waiting = [directory]
    while waiting:
        parent = waiting.pop()
        for record in removals.in_directory(connection, parent):
            row = inodes.find(connection, record.ino)
            if record.kind not in _LOST_NAME or row is None or not _can_come_back(row):
                continue
            if names.find(connection, parent, record.name) is not None:
                continue
            _give_back(connection, record, now_ns, changed)
            if row.is_directory:
                waiting.append(row.ino)


def _held_ticks(connection: Connection) -> set[int]:
    return {record.tick for record in removals.held(connection, generations.oldest_unsealed(connection))}


def _parts(path: bytes) -> list[bytes]:
    return [part for part in path.split(b"/") if part not in (b"", b".")]


def _shown(path: bytes) -> str:
    return repr(os.fsdecode(path))
