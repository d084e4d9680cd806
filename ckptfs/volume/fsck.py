"""``ckptfs fsck``: a check of a volume at rest, its repairs, and the end of a quarantine.

Every kind of damage is a row of the table in docs/crash-consistency.md, with the repair given there. Nothing is thrown
away by a repair: a content that cannot be served goes to quarantine. The metadata is checked in one transaction, repairs
included, followed by a barrier; lanes are only looked at, but for those that nothing names.

A volume whose last run did not end cleanly waits for the recovery of its next mount: lanes that nothing names and unsealed
contents are to be expected and are no damage, and its quarantine is not ended before recovery had its say.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection

from ckptfs import config as volume_config
from ckptfs.errors import DamagedData, ProtectedData
from ckptfs.image.files import list_lanes
from ckptfs.meta import generations, inodes, names, removals, runs
from ckptfs.meta.database import Database
from ckptfs.meta.generations import GenerationRow
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.schema import ROOT_INO, RemovalKind, State
from ckptfs.volume import links, quarantine
from ckptfs.volume.format import METADATA_NAME, refuse_missing_metadata
from ckptfs.volume.lock import VolumeLock
from ckptfs.volume.reclaim import finish, forget_inode
from ckptfs.volume.recovery import find_orphans, lane_sizes, sweep
from ckptfs.volume.reports import Damage, FsckMode, FsckReport
from ckptfs.volume.stripes import open_stripes

DATABASE = "database damaged"
ORPHAN_LANE = "lane file without image row"
SHORT_LANE = "lane missing or shorter than it was sealed"
LOST_INODE = "inode without name, record or quarantine"
LOST_CONTENT = "content that nothing keeps"
DANGLING_ENTRY = "entry whose inode or directory is missing"
LINK_COUNT = "link count differs from the entries"
DANGLING_RECORD = "removal record whose content is gone"


def check(directory: Path, mode: FsckMode = FsckMode.CHECK) -> FsckReport:
    """Check the volume in ``directory``, which must not be in use, and do what ``mode`` allows.

    Raises :class:`VolumeInUse`, :class:`StripeMismatch` and what reading volume.toml raises; :class:`ProtectedData` for
    ending the quarantine of a volume that is yet to recover.
    """
    settings = volume_config.load(directory)
    with VolumeLock.acquire(directory):
        stripes = [stripe.path for stripe in open_stripes(settings)]
        path = directory / METADATA_NAME
        try:
            refuse_missing_metadata(directory)
            database = Database.open(path)
        except DamagedData as why:
            return _unreadable(str(why))
        try:
            errors = database.integrity_errors()
            if errors:
                return _unreadable(f"the metadata database {path} is damaged: {'; '.join(errors[:3])}")
            return _check(database, stripes, mode, time.time_ns())
        finally:
            database.close()


def _unreadable(detail: str) -> FsckReport:
    return FsckReport(0, 0, 0, damage=[Damage(DATABASE, detail)], quarantine=[])


def _check(database: Database, stripes: Sequence[Path], mode: FsckMode, now_ns: int) -> FsckReport:
    last = database.transact(runs.last)
    at_rest = last is None or last.clean
    if not at_rest and mode in (FsckMode.RESTORE, FsckMode.DISCARD):
        raise ProtectedData(
            "the last run of this volume did not end cleanly, and recovery may still change what is in quarantine. "
            "Mount and unmount it once, then try again"
        )
    checker = database.transact(_check_metadata, stripes, mode is FsckMode.REPAIR, now_ns)
    damage = checker.damage
    lanes = sum(1 for stripe in stripes for _ in list_lanes(stripe))
    restored: list[bytes] = []
    discarded = 0
    if mode is FsckMode.RESTORE:
        quarantine.flush_lanes(database.transact(quarantine.contents), stripes)
        restored = database.transact(quarantine.restore, now_ns)
    elif mode is FsckMode.DISCARD:
        discarded = database.transact(quarantine.discard)
    orphans = [] if not at_rest else list(find_orphans(stripes, database.transact(generations.with_images)))
    dropping = {image.id for image in database.transact(generations.dropping_images)}
    damage += [
        Damage(ORPHAN_LANE, f"{lane} belongs to no file", repaired=mode is FsckMode.REPAIR)
        for lane in orphans
        if int(lane.name.partition(".")[0], 16) not in dropping
    ]
    database.barrier()
    if mode is FsckMode.REPAIR:
        sweep(database, stripes)
    elif mode is not FsckMode.CHECK:
        finish(database, stripes)
    return FsckReport(
        inodes_checked=checker.inodes_checked,
        generations_checked=checker.generations_checked,
        lanes_checked=lanes,
        damage=damage,
        quarantine=database.transact(quarantine.listed),
        restored=restored,
        discarded=discarded,
    )


def _check_metadata(connection: Connection, stripes: Sequence[Path], repair: bool, now_ns: int) -> _Checker:
    checker = _Checker(connection, stripes, repair, now_ns)
    checker.check_entries()
    checker.check_records()
    checker.check_lanes()
    checker.check_contents()
    checker.check_inodes()
    return checker


@dataclass(slots=True)
class _Checker:
    """The checks of the metadata, in an order in which a repair leaves what the next check then finds."""

    connection: Connection
    stripes: Sequence[Path]
    repair: bool
    now_ns: int
    damage: list[Damage] = field(default_factory=list[Damage])
    inodes_checked: int = 0
    generations_checked: int = 0

    def check_entries(self) -> None:
        """Every entry has a directory and an inode."""
        rows = {row.ino: row for row in inodes.everything(self.connection)}
        for entry in names.everything(self.connection):
            above = rows.get(entry.parent)
            if entry.ino in rows and above is not None and above.is_directory:
                continue
            what = f"inode {entry.ino}" if entry.ino not in rows else f"directory {entry.parent}"
            path = names.path_of_name(self.connection, entry.parent, entry.name)
            self._found(DANGLING_ENTRY, f"the name means {what}, which is missing", path)
            if self.repair:
                names.remove(self.connection, entry)

    def check_records(self) -> None:
        """Every record and every quarantined content is there."""
        known = {row.id for row in generations.everything(self.connection)}
        for record in removals.everything(self.connection):
            is_replacement = record.kind is RemovalKind.REPLACED
            if inodes.find(self.connection, record.ino) is not None and (
                not is_replacement or record.generation in known
            ):
                continue
            path = names.path_of_name(self.connection, record.parent, record.name)
            self._found(DANGLING_RECORD, f"the removal log keeps inode {record.ino}, whose content is gone", path)
            if self.repair:
                removals.remove(self.connection, record.tick)
        for row in removals.quarantined(self.connection):
            if row.generation not in known:
                path = names.path_of_name(self.connection, row.parent, row.name)
                self._found(DANGLING_RECORD, f"the quarantine keeps content {row.generation}, which is gone", path)
                if self.repair:
                    removals.release_from_quarantine(self.connection, row.generation)

    def check_lanes(self) -> None:
        """Every sealed content has all bytes that were in its lanes when it was sealed."""
        rows = generations.everything(self.connection)
        self.generations_checked = len(rows)
        untrusted = {row.generation for row in removals.quarantined(self.connection)}
        for row in rows:
            if row.id in untrusted:
                continue
            detail = self._loss(row)
            if not detail:
                continue
            self._found(SHORT_LANE, detail, self._path_of(row))
            if self.repair:
                self._quarantine(row, f"damaged: {detail}")

    def check_contents(self) -> None:
        """Every content is shown, in the log, or in quarantine."""
        kept = {row.generation for row in removals.quarantined(self.connection)}
        kept |= {record.generation for record in removals.everything(self.connection) if record.generation is not None}
        for row in generations.everything(self.connection):
            if row.id in kept or (row.current and inodes.find(self.connection, row.ino) is not None):
                continue
            self._found(LOST_CONTENT, f"content {row.id} of inode {row.ino} is kept by nothing", self._path_of(row))
            if self.repair:
                self._set_aside(row, "found by fsck, kept by nothing")

    def check_inodes(self) -> None:
        """Every inode has as many links as entries, and a reason to be there."""
        rows = inodes.everything(self.connection)
        self.inodes_checked = len(rows)
        directories = {row.ino for row in rows if row.is_directory}
        entries = names.everything(self.connection)
        named = Counter(entry.ino for entry in entries)
        below = Counter(entry.parent for entry in entries if entry.ino in directories)
        for row in rows:
            right = named[row.ino]
            if row.is_directory:
                right = 2 + below[row.ino] if right or row.ino == ROOT_INO else 0
            if row.nlink != right:
                detail = f"inode {row.ino} has link count {row.nlink}, and its entries make {right}"
                self._found(LINK_COUNT, detail, names.path_of_inode(self.connection, row.ino) or None)
                if self.repair:
                    inodes.set_links(self.connection, row.ino, right, self.now_ns)
            if not named[row.ino] and row.ino != ROOT_INO and not self._is_kept(row):
                self._found(LOST_INODE, f"inode {row.ino} has no name and nothing keeps it", None)
                if self.repair:
                    self._find_home(row)

    def _found(self, kind: str, detail: str, path: bytes | None) -> None:
        self.damage.append(Damage(kind, detail, path, repaired=self.repair))

    def _is_kept(self, row: InodeRow) -> bool:
        return removals.mentions(self.connection, row.ino) or bool(removals.quarantined_of(self.connection, row.ino))

    def _loss(self, row: GenerationRow) -> str:
        """What the lanes of a sealed content lack, as a sentence; empty when nothing."""
        if row.image is None or row.state is State.LANDING:
            return ""
        now = lane_sizes(row.image, self.stripes)
        for lane, (sealed_bytes, bytes_now) in enumerate(zip(row.image.lane_sizes, now, strict=False)):
            if bytes_now < sealed_bytes:
                stripe = self.stripes[row.image.stripes[lane]]
                return (
                    f"lane {lane} of image {row.image.id:016x} on {stripe} has {bytes_now} bytes, "
                    f"and had {sealed_bytes} when it was sealed"
                )
        return ""

    def _path_of(self, row: GenerationRow) -> bytes | None:
        place = self._place_of(row)
        return None if place is None else names.path_of_name(self.connection, *place)

    def _place_of(self, row: GenerationRow) -> tuple[int, bytes] | None:
        entries = names.of_inode(self.connection, row.ino)
        if entries:
            return entries[0].parent, entries[0].name
        records = removals.of_inode(self.connection, row.ino)
        return (records[0].parent, records[0].name) if records else None

    def _set_aside(self, row: GenerationRow, reason: str) -> None:
        parent, name = self._place_of(row) or (ROOT_INO, b"inode-%d" % row.ino)
        removals.quarantine_generation(
            self.connection, row.id, parent=parent, name=name, reason=reason, now_ns=self.now_ns
        )

    def _quarantine(self, row: GenerationRow, reason: str) -> None:
        """Put a damaged content aside; where it is shown, a sound predecessor takes its place, or the name goes."""
        self._set_aside(row, reason)
        own = removals.of_generation(self.connection, row.id)
        if own is not None:
            removals.remove(self.connection, own.tick)
        if not row.current:
            return
        for record in removals.predecessors(self.connection, row.id):
            old = None if record.generation is None else generations.find(self.connection, record.generation)
            if old is not None and old.state is not State.LANDING and not self._loss(old):
                removals.remove(self.connection, record.tick)
                removals.set_winner(self.connection, row.id, old.id)
                generations.set_current(self.connection, row.ino, old.id)
                links.content_changed(self.connection, row.ino, self.now_ns)
                return
        inode = inodes.find(self.connection, row.ino)
        if inode is None:
            return
        for entry in names.of_inode(self.connection, row.ino):
            links.take_name(self.connection, inode, entry, self.now_ns)
            self._give_to_predecessor(entry.parent, entry.name)
        removals.forget_names_of(self.connection, row.ino)

    def _give_to_predecessor(self, parent: int, name: bytes) -> None:
        for record in removals.of_name(self.connection, parent, name):
            if record.kind not in (RemovalKind.UNLINKED, RemovalKind.RENAMED_OVER):
                continue
            lost = inodes.find(self.connection, record.ino)
            old = generations.current(self.connection, record.ino)
            if lost is not None and old is not None and old.state is not State.LANDING and not self._loss(old):
                removals.remove(self.connection, record.tick)
                links.give_name(self.connection, lost, parent, name, self.now_ns)
                return

    def _find_home(self, row: InodeRow) -> None:
        """Content goes to quarantine; a directory, link or device has none and gets a name in the root; nothing goes."""
        content = generations.current(self.connection, row.ino)
        if content is not None:
            self._set_aside(content, "found by fsck, without a name")
            return
        if row.is_regular:
            forget_inode(self.connection, row.ino)
            return
        name = b"lost-inode-%d" % row.ino
        if names.find(self.connection, ROOT_INO, name) is None:
            names.add(self.connection, ROOT_INO, name, row.ino)
            below = sum(
                1
                for entry in names.everything(self.connection)
                if entry.parent == row.ino and self._is_directory(entry.ino)
            )
            inodes.set_links(self.connection, row.ino, 2 + below if row.is_directory else 1, self.now_ns)
            inodes.touch_directory(self.connection, ROOT_INO, self.now_ns, links=int(row.is_directory))

    def _is_directory(self, ino: int) -> bool:
        row = inodes.find(self.connection, ino)
        return row is not None and row.is_directory
