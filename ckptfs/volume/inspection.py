"""Reading an open volume for people: ``status``, ``info``, the state xattr. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from sqlalchemy import Connection

import ckptfs
from ckptfs.config import VolumeConfig
from ckptfs.errors import IsADirectory, NameNotFound, NotSupported
from ckptfs.image.files import lane_path, list_lanes
from ckptfs.meta import generations, names, removals
from ckptfs.meta.database import Database
from ckptfs.meta.generations import GenerationRow
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.schema import State
from ckptfs.volume.live import LiveFile
from ckptfs.volume.reports import (
    ByteCounts,
    FileInfo,
    GenerationCounts,
    LaneReport,
    OpenFiles,
    VolumeIdentity,
    VolumeStatus,
)
from ckptfs.volume.stripes import Stripe


def state_of(connection: Connection, ino: int) -> State | None:
    """The state of a regular file; None for anything else."""
    row = generations.current(connection, ino)
    return None if row is None else row.state


def status(
    database: Database, directory: Path, config: VolumeConfig, stripes: Sequence[Stripe], open_counts: tuple[int, int]
) -> VolumeStatus:
    """The whole volume at a glance. Asks the stripes for their space and the sizes of all lanes."""
    counts, torn, raw, quarantined = database.transact(_count)
    readers, writers = open_counts
    return VolumeStatus(
        volume=VolumeIdentity(config.volume.id, str(directory), ckptfs.__version__),
        stripes=[stripe.report() for stripe in stripes],
        generations=GenerationCounts(
            landing=counts[State.LANDING],
            sealed=counts[State.SEALED],
            packed=counts[State.PACKED],
            torn=torn,
            quarantined=quarantined,
        ),
        bytes=ByteCounts(raw=raw, stored=sum(_stored_bytes(stripe) for stripe in stripes)),
        open_files=OpenFiles(total=readers + writers, writing=writers),
    )


def file_info(
    database: Database, stripes: Sequence[Stripe], path: bytes, find_live: Callable[[int], LiveFile | None]
) -> FileInfo:
    """One regular file. Raises :class:`NameNotFound`, :class:`IsADirectory`, :class:`NotSupported` for a special file."""
    inode, row = database.transact(_find, path)
    live = find_live(inode.ino)
    size = row.size if live is None else live.size
    # A live file is sealed before the commit that says so.
    state = State.LANDING if live is not None and live.state is State.LANDING else row.state
    flushed = row.flushed if live is None else live.flushed
    image = row.image
    chunk_size = image.chunk_size if image is not None else 0
    chunks = -(-size // chunk_size) if chunk_size else 0
    lanes = (
        [] if image is None else [_lane(stripes[number], image.id, lane) for lane, number in enumerate(image.stripes)]
    )
    return FileInfo(
        path=path,
        size=size,
        generation=row.id,
        state=state.value,
        width=0 if image is None else len(image.stripes),
        chunk_size=chunk_size,
        chunks=chunks,
        present=chunks,
        torn=not flushed and (live is None or not live.writers),
        lanes=lanes,
    )


def _count(connection: Connection) -> tuple[dict[State, int], int, int, int]:
    return (
        generations.count_by_state(connection),
        generations.count_torn(connection),
        generations.current_bytes(connection),
        len(removals.quarantined(connection)),
    )


def _find(connection: Connection, path: bytes) -> tuple[InodeRow, GenerationRow]:
    inode = names.resolve(connection, path)
    if inode is None:
        raise NameNotFound(f"there is no {os.fsdecode(path)!r} in the volume")
    if inode.is_directory:
        raise IsADirectory(f"{os.fsdecode(path)!r} is a directory")
    row = generations.current(connection, inode.ino)
    if row is None:
        raise NotSupported(f"{os.fsdecode(path)!r} is not a regular file: it has no chunks to tell of")
    return inode, row


def _lane(stripe: Stripe, image_id: int, lane: int) -> LaneReport:
    path = lane_path(stripe.path, image_id, lane)
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        size = 0
    return LaneReport(stripe.index, str(path), size)


def _stored_bytes(stripe: Stripe) -> int:
    total = 0
    try:
        for image_id, lane in list_lanes(stripe.path):
            try:
                total += lane_path(stripe.path, image_id, lane).stat().st_blocks * 512
            except FileNotFoundError:
                continue  # freed meanwhile
    except OSError as why:
        stripe.note_problem(why)
    return total
