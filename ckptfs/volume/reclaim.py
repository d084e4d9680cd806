"""Freeing what the removal log keeps: which records may go, and the order in which their lanes do.

A record goes when nothing holds it and the undelete window is over, or space is needed. With the last record that needs
it, an inode without names goes too, unless the kernel or a program still knows it (*busy*): then the record waits, so
that a crash finds no inode without a reason. A removed directory waits for what was removed from it.

The order is the rule of docs/crash-consistency.md: :func:`drop_some` is step 1, :func:`finish` the others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from ckptfs import faults
from ckptfs.image.files import lane_path, unlink_image
from ckptfs.meta import generations, inodes, removals
from ckptfs.meta.database import Database
from ckptfs.meta.removals import RemovalRow
from ckptfs.meta.schema import RemovalKind

_AT_ONCE = 256
"""Records dropped in one transaction at most: others wait for it."""


@dataclass(frozen=True, slots=True)
class _Dropped:
    records: list[RemovalRow]
    inode: int | None
    """Goes with them."""
    size: int
    """Bytes of content that go with them."""


def drop_some(
    connection: Connection, *, now_ns: int, window_s: float, wanted_bytes: int | None, busy_inodes: set[int]
) -> int:
    """Drop records older than the window, oldest first; returns how many went, 0 when there is no more to drop.

    With ``wanted_bytes``, only those that free content, until so much is freed. Lanes are still there: :func:`finish`.
    """
    oldest = generations.oldest_unsealed(connection)
    before_ns = now_ns - int(window_s * 1e9)
    dropped: set[int] = set()
    freed_bytes = 0
    after_tick = 0
    while len(dropped) < _AT_ONCE:
        records = removals.free_to_go(connection, oldest, before_ns, _AT_ONCE, after_tick)
        if not records:
            break
        after_tick = records[-1].tick
        for record in records:
            if record.tick in dropped:
                continue
            plan = _plan(connection, record, busy_inodes)
            if plan is None or (wanted_bytes is not None and not plan.size):
                continue
            _drop(connection, record, plan)
            dropped.update(gone.tick for gone in plan.records)
            freed_bytes += plan.size
            if len(dropped) >= _AT_ONCE or (wanted_bytes is not None and freed_bytes >= wanted_bytes):
                return len(dropped)
    return len(dropped)


def finish(database: Database, stripes: Sequence[Path]) -> None:
    """Free the lanes of every dropped image; ``stripes[n]`` is the directory of stripe number *n*. Blocks on devices."""
    images = database.transact(generations.dropping_images)
    if not images:
        return
    faults.hit("reclaim.dropping")
    database.barrier()
    faults.hit("reclaim.barrier")
    for image in images:
        paths = [stripes[number] for number in image.stripes]
        # Emptied first: a descriptor that is closed later, with its Image's last reference, would keep the blocks taken.
        for lane, stripe in enumerate(paths):
            with suppress(FileNotFoundError):
                os.truncate(lane_path(stripe, image.id, lane), 0)
        unlink_image(image.id, len(image.stripes), paths)
    faults.hit("reclaim.lanes-gone")
    database.transact(generations.forget_images, [image.id for image in images])


def allocated_bytes(image: tuple[int, str], stripes: Sequence[Path]) -> int:
    """What the lanes of an image (id, and stripe numbers as text) take of their devices."""
    image_id, numbers = image
    total = 0
    for lane, number in enumerate(numbers.split()):
        try:
            total += os.stat(lane_path(stripes[int(number)], image_id, lane)).st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def _plan(connection: Connection, record: RemovalRow, busy: set[int]) -> _Dropped | None:
    """What goes with the record; None when it must wait."""
    row = inodes.find(connection, record.ino)
    others = [other for other in removals.of_inode(connection, record.ino) if other.tick != record.tick]
    if record.kind is RemovalKind.REPLACED:
        size = _size(connection, record.generation)
        if row is None or row.nlink or others:
            return _Dropped([record], None, size)
    elif row is None or row.nlink or any(other.kind is not RemovalKind.REPLACED for other in others):
        return _Dropped([record], None, 0)
    # The last name of the inode that anything remembers: all of it goes, its replaced contents too.
    if record.ino in busy:
        return None
    if row.is_directory and removals.in_directory(connection, record.ino):
        return None
    rows = generations.of_inode(connection, record.ino)
    if any(row.unsealed_since is not None for row in rows):
        return None
    return _Dropped([record, *others], record.ino, sum(row.size for row in rows if row.image is not None))


def _size(connection: Connection, generation_id: int | None) -> int:
    row = None if generation_id is None else generations.find(connection, generation_id)
    return 0 if row is None or row.image is None else row.size


def _drop(connection: Connection, record: RemovalRow, plan: _Dropped) -> None:
    for gone in plan.records:
        removals.remove(connection, gone.tick)
    if plan.inode is None:
        if record.kind is RemovalKind.REPLACED and record.generation is not None:
            generations.remove(connection, record.generation)
        return
    forget_inode(connection, plan.inode)


def forget_inode(connection: Connection, ino: int) -> None:
    """Delete an inode that has no name and no record, with its contents; those in quarantine stay, and keep it."""
    kept = removals.quarantined_of(connection, ino)
    for row in generations.of_inode(connection, ino):
        if row.id not in kept:
            generations.remove(connection, row.id)
    if not kept:
        inodes.remove(connection, ino)
