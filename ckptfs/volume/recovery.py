"""Recovery: what a mount does about a run that did not end cleanly, before it serves.

docs/crash-consistency.md has the tables. Contents come first: for every generation that the crash put in question,
whether it stands, yields to a predecessor, or goes to quarantine. After a loss of power, names follow: removals that
were held and that no fsync made final are undone (``undo.py``), then files that an fsync found empty come back empty.
All of that is one transaction and a barrier, so a crash in it repeats it. Then lanes are brought in line with what the
metadata says, which is harmless to repeat.

A replaced content is taken back only while its record is not acknowledged, that is until an fsync covered the
successor or a seal found it finished: an edit in place of a finished file must never bring back what that one replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection

from ckptfs import faults
from ckptfs.image.files import lane_path, list_lanes, unlink_image
from ckptfs.image.image import Image
from ckptfs.image.layout import Layout
from ckptfs.meta import generations, inodes, names, removals
from ckptfs.meta.database import Database
from ckptfs.meta.generations import GenerationRow, ImageRow
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.removals import RemovalRow
from ckptfs.meta.schema import ROOT_INO, RemovalKind, State
from ckptfs.volume import links
from ckptfs.volume.undo import undo


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery did, by path from the root of the volume; ``lanes_swept`` are files on the stripes."""

    same_instance: bool
    taken_back: tuple[bytes, ...]
    """Files that show their previous content again."""
    quarantined: tuple[bytes, ...]
    """Where contents were found that are in quarantine now."""
    torn: tuple[bytes, ...]
    """Files left with what their writer got done."""
    undone: tuple[bytes, ...]
    """Names whose removal or replacement was undone."""
    emptied: tuple[bytes, ...]
    """Files that came back empty: as the last fsync saw them."""
    lanes_swept: tuple[Path, ...]

    def __str__(self) -> str:
        parts = [
            _told("previous content back", self.taken_back),
            _told("to quarantine", self.quarantined),
            _told("torn, kept as written", self.torn),
            _told("removal undone", self.undone),
            _told("back empty", self.emptied),
            f"{len(self.lanes_swept)} unused lanes removed" if self.lanes_swept else "",
        ]
        lost = "the machine kept what was written" if self.same_instance else "what was not flushed may be lost"
        return "; ".join([lost, *filter(None, parts)])


def recover(database: Database, stripes: Sequence[Path], same_instance: bool, now_ns: int) -> RecoveryReport:
    """Make the volume consistent after a crash; ``stripes[n]`` is the directory of stripe number *n*.

    ``same_instance``: nothing that was handed to the kernel was lost. Doing it again changes nothing.
    """
    found = database.transact(_decide, stripes, same_instance, now_ns)
    faults.hit("recovery.committed")
    database.barrier()
    swept = sweep(database, stripes)
    _cut_lanes(database, stripes)
    return RecoveryReport(
        same_instance=same_instance,
        taken_back=tuple(found.taken_back),
        quarantined=tuple(found.quarantined.values()),
        torn=tuple(found.torn),
        undone=tuple(found.undone),
        emptied=tuple(found.emptied),
        lanes_swept=tuple(swept),
    )


def sweep(database: Database, stripes: Sequence[Path]) -> list[Path]:
    """Unlink the lanes of dropped images, and those that no image row names; returns the latter.

    A barrier must have covered the commits that dropped the images.
    """
    dropping = database.transact(generations.dropping_images)
    for image in dropping:
        unlink_image(image.id, len(image.stripes), [stripes[number] for number in image.stripes])
    orphans = list(find_orphans(stripes, database.transact(generations.with_images)))
    for lane in orphans:
        lane.unlink(missing_ok=True)
    if dropping:
        database.transact(generations.forget_images, [image.id for image in dropping])
    return orphans


def _cut_lanes(database: Database, stripes: Sequence[Path]) -> None:
    """Cut lanes to the size of their file: where the metadata lost a write or a truncate that the lanes have seen, or a
    lane was ahead of the others.

    Otherwise those bytes would show, instead of zeros, once the file is made longer. What is in quarantine stays whole.
    """
    rows, quarantined = database.transact(
        lambda connection: (
            generations.with_images(connection),
            {one.generation for one in removals.quarantined(connection)},
        )
    )
    for row in rows:
        if row.image is None or row.id in quarantined or size_in_lanes(row.image, stripes) <= row.size:
            continue
        image = Image(row.image.id, layout_of(row.image), [stripes[number] for number in row.image.stripes])
        try:
            image.truncate(row.size)
        finally:
            image.close()


def find_orphans(stripes: Sequence[Path], rows: Iterable[GenerationRow]) -> Iterator[Path]:
    """The lane files that none of the images of ``rows`` has."""
    known = {
        (image.id, lane, number)
        for row in rows
        if (image := row.image) is not None
        for lane, number in enumerate(image.stripes)
    }
    for number, stripe in enumerate(stripes):
        for image_id, lane in list_lanes(stripe):
            if (image_id, lane, number) not in known:
                yield lane_path(stripe, image_id, lane)


def size_in_lanes(image: ImageRow | None, stripes: Sequence[Path]) -> int:
    """Up to where the lanes of an image hold bytes, as a size of the file; missing lanes hold none."""
    return 0 if image is None else layout_of(image).size_implied_by(lane_sizes(image, stripes))


def lane_sizes(image: ImageRow, stripes: Sequence[Path]) -> list[int]:
    """The size of each lane file of an image in bytes, 0 for a missing one."""
    sizes: list[int] = []
    for lane, number in enumerate(image.stripes):
        try:
            sizes.append(os.stat(lane_path(stripes[number], image.id, lane)).st_size)
        except FileNotFoundError:
            sizes.append(0)
    return sizes


def layout_of(image: ImageRow) -> Layout:
    """The arithmetic of an image."""
    return Layout(image.chunk_size, len(image.stripes), image.first)


@dataclass(slots=True)
class _Found:
    taken_back: list[bytes] = field(default_factory=list[bytes])
    quarantined: dict[int, bytes] = field(default_factory=dict[int, bytes])
    torn: list[bytes] = field(default_factory=list[bytes])
    undone: list[bytes] = field(default_factory=list[bytes])
    emptied: list[bytes] = field(default_factory=list[bytes])


@dataclass(frozen=True, slots=True)
class _WasEmpty:
    """A file whose content is in quarantine, and which was on disk while it was empty.

    ``places`` are where it may come back.
    """

    ino: int
    content: int
    places: list[tuple[int, bytes]]


def _decide(connection: Connection, stripes: Sequence[Path], same_instance: bool, now_ns: int) -> _Found:
    held = [
        record
        for record in removals.held(connection, generations.oldest_unsealed(connection))
        if record.kind is not RemovalKind.REPLACED and not record.acknowledged
    ]
    work = _Contents(connection, stripes, same_instance, {record.tick for record in held}, now_ns)
    for row in generations.doubtful(connection):
        if row.current:
            work.settle_current(row)
    for row in generations.doubtful(connection):
        if not row.current:
            work.settle_replaced(row)
    found = work.found
    if not same_instance:
        kept = [record for record in held if record.ino not in work.nameless]
        paths = {record.tick: names.path_of_name(connection, record.parent, record.name) for record in kept}
        found.undone = [paths[record.tick] for record in undo(connection, kept, now_ns)]
        for was in work.were_empty:
            _bring_back_empty(connection, was, now_ns, found)
    faults.hit("recovery.before-commit")
    return found


class _Contents:
    """The first half of recovery: what becomes of each generation in question."""

    def __init__(
        self, connection: Connection, stripes: Sequence[Path], same_instance: bool, undoable: set[int], now_ns: int
    ) -> None:
        self.found = _Found()
        self.nameless: set[int] = set()
        self.were_empty: list[_WasEmpty] = []
        self._connection = connection
        self._stripes = stripes
        self._same_instance = same_instance
        self._undoable = undoable
        self._now_ns = now_ns

    def settle_current(self, row: GenerationRow) -> None:
        """Decide for a generation that its inode shows."""
        # Without its power, a device has not all of what was flushed to the image: a seal may have caught the file half way.
        torn = not row.flushed or (row.state is State.LANDING and not self._same_instance)
        usable = self._is_usable(row)
        if usable and not torn:
            self._stay(row)
            return
        heir, between = self._heir(row, usable)
        if heir is not None:
            self._yield_to(heir, [row, *between])
        elif usable or (row.sealed_size == 0 and row.image is None):
            # Without an image nothing was ever written: an fsync found it empty, and so it is.
            self._stay(row)
        else:
            self._quarantine_inode(row, between)

    def settle_replaced(self, row: GenerationRow) -> None:
        """Decide for an unsealed generation that only the log keeps."""
        if self._is_usable(row):
            self._stay(row)
            return
        record = removals.of_generation(self._connection, row.id)
        if record is None:
            return  # cannot be; fsck finds it
        if record.winner is not None:
            removals.set_winner(self._connection, row.id, record.winner)
        removals.remove(self._connection, record.tick)
        self._quarantine(row, record.parent, record.name, "replaced before it was on disk, then the power was lost")

    def _is_usable(self, row: GenerationRow) -> bool:
        """Whether some of it can be served: it is in the lanes for certain, or was once.

        Sealed while empty is as never sealed: its content came later, and nothing is known of it.
        """
        return self._same_instance or row.state is not State.LANDING or bool(row.sealed_size)

    def _heir(self, row: GenerationRow, usable: bool) -> tuple[RemovalRow | None, list[GenerationRow]]:
        """The record of the predecessor that ``row`` yields to, and the generations between that are passed over.

        It is the newest finished one; with none, and nothing in ``row`` to serve, the newest that can be served at all.
        """
        between: list[GenerationRow] = []
        partly: tuple[RemovalRow, list[GenerationRow]] | None = None
        waiting = [record for record in removals.predecessors(self._connection, row.id) if not record.acknowledged]
        while waiting:
            record = waiting.pop(0)
            old = None if record.generation is None else generations.find(self._connection, record.generation)
            if old is None:
                continue
            if self._is_usable(old):
                if old.flushed:
                    return record, between
                if partly is None and not usable:
                    partly = record, between[:]
            between.append(old)
            waiting += [older for older in removals.predecessors(self._connection, old.id) if not older.acknowledged]
        return partly if partly is not None else (None, between)

    def _yield_to(self, heir: RemovalRow, losers: list[GenerationRow]) -> None:
        assert heir.generation is not None
        connection = self._connection
        parent, name = self._place_of(losers[0], heir)
        reason = (
            "an overwrite was interrupted; the file has its previous content back"
            if self._same_instance
            else "not on disk when the power was lost; the file has its previous content back"
        )
        removals.remove(connection, heir.tick)
        for loser in losers:
            own = removals.of_generation(connection, loser.id)
            if own is not None:
                removals.remove(connection, own.tick)
            removals.set_winner(connection, loser.id, heir.generation)
            if loser.size or size_in_lanes(loser.image, self._stripes):
                self._quarantine(loser, parent, name, reason)
            else:  # opened with O_TRUNC and never written: there is nothing to keep
                generations.remove(connection, loser.id)
        generations.set_current(connection, losers[0].ino, heir.generation)
        if not self._same_instance:
            self._move_back(losers[0].ino, heir)
        links.content_changed(connection, losers[0].ino, self._now_ns)
        old = generations.the(connection, heir.generation)
        if old.state is State.LANDING:
            self._stay(old)
        self.found.taken_back.append(names.path_of_name(connection, parent, name))

    def _move_back(self, ino: int, heir: RemovalRow) -> None:
        """Where the file was only renamed since its content was replaced, the old content goes back to its old name.

        Under the new one it would stand for what the new content was, and keep the name from what had it before. With the
        old name taken, it is what that name lost: ``ckptfs previous`` has it.
        """
        entries = names.of_inode(self._connection, ino)
        inode = inodes.find(self._connection, ino)
        if inode is None or len(entries) != 1 or (entries[0].parent, entries[0].name) == (heir.parent, heir.name):
            return
        if not links.is_live_directory(self._connection, heir.parent):
            return
        if names.find(self._connection, heir.parent, heir.name) is None:
            links.move_name(self._connection, inode, entries[0], heir.parent, heir.name, self._now_ns)
            return
        removals.add(
            self._connection,
            RemovalKind.UNLINKED,
            parent=heir.parent,
            name=heir.name,
            ino=ino,
            now_ns=self._now_ns,
            acknowledged=True,
        )
        links.take_name(self._connection, inode, entries[0], self._now_ns)

    def _stay(self, row: GenerationRow) -> None:
        """Keep a generation, with the size that can be vouched for; it is sealed when all of it is on disk already."""
        if row.state is not State.LANDING:
            return
        in_lanes = size_in_lanes(row.image, self._stripes)
        sealed = row.sealed_size or 0
        size = row.size
        flushed = row.flushed
        if not self._same_instance and (row.image is None or not row.image.lane_sizes):
            # Never sealed whole: beyond what was sealed, a lane's size says nothing of its bytes.
            size = sealed
            flushed = flushed and size == row.size
        elif not self._same_instance:
            size = max(sealed, min(row.size, in_lanes))
        elif not row.flushed:
            # Lanes are written side by side: beyond the last FLUSH, one may be ahead of a hole in another.
            size = max(sealed, min(in_lanes, max(row.size, self._prefix_in_lanes(row))))
        if not self._same_instance and row.sealed_size == size:
            generations.set_sealed(
                self._connection, row.id, size=size, sealed_size=size, unsealed_since=None, flushed=flushed
            )
            self._note_lanes(row, size)
        elif size != row.size:
            generations.set_flushed(self._connection, row.id, flushed=flushed, size=size)
        if row.current and (size != row.size or not row.flushed):
            self.found.torn.append(names.path_of_inode(self._connection, row.ino))

    def _quarantine_inode(self, row: GenerationRow, replaced: list[GenerationRow]) -> None:
        """Nothing of it can be trusted, and there is nothing to put in its place: the names go too."""
        connection = self._connection
        entries = names.of_inode(connection, row.ino)
        lost = [record for record in removals.of_inode(connection, row.ino) if record.kind is not RemovalKind.REPLACED]
        places = [(entry.parent, entry.name) for entry in entries]
        if not places:
            # Removed already: it comes back, empty, only where its removal would be undone.
            places = [(record.parent, record.name) for record in lost if record.tick in self._undoable]
        parent, name = self._place_of(row, lost[0] if lost else None)
        self._quarantine(row, parent, name, "never on disk when the power was lost")
        inode = inodes.find(connection, row.ino)
        assert inode is not None
        for entry in entries:
            links.take_name(connection, inode, entry, self._now_ns)
        removals.forget_names_of(connection, row.ino)
        self.nameless.add(row.ino)
        empty = next((one for one in (row, *replaced) if one.sealed_size is not None), None)
        if empty is not None and places:
            if empty.acknowledged_parent is not None and empty.acknowledged_name is not None:
                places = [(empty.acknowledged_parent, empty.acknowledged_name)]
            self.were_empty.append(_WasEmpty(row.ino, row.id, places))

    def _quarantine(self, row: GenerationRow, parent: int, name: bytes, reason: str) -> None:
        in_lanes = size_in_lanes(row.image, self._stripes)
        size = min(row.size, in_lanes) if row.flushed else in_lanes
        generations.set_flushed(self._connection, row.id, flushed=row.flushed, size=size)
        self._note_lanes(row, size)
        removals.quarantine_generation(
            self._connection, row.id, parent=parent, name=name, reason=reason, now_ns=self._now_ns
        )
        self.found.quarantined[row.id] = names.path_of_name(self._connection, parent, name)

    def _prefix_in_lanes(self, row: GenerationRow) -> int:
        return 0 if row.image is None else layout_of(row.image).prefix_held_by(lane_sizes(row.image, self._stripes))

    def _note_lanes(self, row: GenerationRow, size: int) -> None:
        """Record how long the lanes are from now on, cut to ``size``: what an earlier seal recorded holds no more."""
        if row.image is not None:
            layout = layout_of(row.image)
            held = enumerate(lane_sizes(row.image, self._stripes))
            sizes = [min(held_bytes, layout.lane_size(lane, size)) for lane, held_bytes in held]
            generations.set_lane_sizes(self._connection, row.id, sizes)

    def _place_of(self, row: GenerationRow, record: RemovalRow | None) -> tuple[int, bytes]:
        entries = names.of_inode(self._connection, row.ino)
        if entries:
            return entries[0].parent, entries[0].name
        if record is not None:
            return record.parent, record.name
        return ROOT_INO, b"inode-%d" % row.ino


def _bring_back_empty(connection: Connection, was: _WasEmpty, now_ns: int, found: _Found) -> None:
    free = [
        (parent, name)
        for parent, name in was.places
        if links.is_live_directory(connection, parent) and names.find(connection, parent, name) is None
    ]
    if not free:
        return
    content = generations.the(connection, was.content)
    if content.size:
        empty = generations.add(connection, was.ino, now_ns).id
        removals.set_winner(connection, content.id, empty)
    else:  # nothing is in quarantine that would be worth keeping there
        empty = content.id
        removals.release_from_quarantine(connection, empty)
        del found.quarantined[empty]
        generations.set_current(connection, was.ino, empty)
    generations.set_sealed(connection, empty, size=0, sealed_size=0, unsealed_since=None, flushed=True)
    links.content_changed(connection, was.ino, now_ns)
    for parent, name in free:
        row: InodeRow | None = inodes.find(connection, was.ino)
        assert row is not None
        links.give_name(connection, row, parent, name, now_ns)
        found.emptied.append(names.path_of_name(connection, parent, name))


def _told(what: str, paths: tuple[bytes, ...]) -> str:
    if not paths:
        return ""
    shown = ", ".join(repr(os.fsdecode(path)) for path in paths[:5])
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return f"{what}: {shown}{more}"
