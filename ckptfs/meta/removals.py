"""Queries about the removal log and the quarantine: what names lost, and what recovery did not trust."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, delete, exists, insert, or_, select, update

from ckptfs.meta.generations import next_tick
from ckptfs.meta.schema import RemovalKind, State, generation, image, inode, quarantine, removal


@dataclass(frozen=True, slots=True)
class RemovalRow:
    """One thing that a name lost; the columns are explained in ``schema.py``."""

    tick: int
    kind: RemovalKind
    parent: int
    name: bytes
    ino: int
    generation: int | None
    source_parent: int | None
    source_name: bytes | None
    winner: int | None
    removed_ns: int
    acknowledged: bool


@dataclass(frozen=True, slots=True)
class QuarantineRow:
    """A generation that recovery did not trust, and where it was named."""

    generation: int
    parent: int
    name: bytes
    reason: str
    quarantined_ns: int


_add = insert(removal)
_successor = generation.alias("successor")
_successor_unfinished = exists().where(
    _successor.c.id == removal.c.winner,
    or_(_successor.c.unsealed_since.is_not(None), _successor.c.flushed.is_(False)),
)
_held = or_(
    removal.c.tick > bindparam("oldest"),
    and_(removal.c.kind == RemovalKind.REPLACED, _successor_unfinished),
)
_NEVER = 1 << 62
_ino_of_generation = select(generation.c.ino).where(generation.c.id == bindparam("g")).scalar_subquery()
_replaced_by = and_(  # the inode is known and has an index, the winner has none
    removal.c.ino == _ino_of_generation, removal.c.kind == RemovalKind.REPLACED, removal.c.winner == bindparam("g")
)
_acknowledge_replacement = (
    update(removal).where(_replaced_by, removal.c.acknowledged.is_(False)).values(acknowledged=True)
)
_predecessors = select(removal).where(_replaced_by).order_by(removal.c.tick.desc())


def _rows(
    connection: Connection, query: Select[*tuple[Any, ...]], values: dict[str, int] | None = None
) -> list[RemovalRow]:
    found: list[RemovalRow] = []
    for row in connection.execute(query, values or {}):
        columns: list[Any] = list(row)
        found.append(RemovalRow(columns[0], RemovalKind(columns[1]), *columns[2:]))
    return found


def add(
    connection: Connection,
    kind: RemovalKind,
    *,
    parent: int,
    name: bytes,
    ino: int,
    now_ns: int,
    generation_id: int | None = None,
    source_parent: int | None = None,
    source_name: bytes | None = None,
    winner: int | None = None,
    acknowledged: bool = False,
) -> None:
    """Record what ``name`` in ``parent`` loses, in the transaction in which it does; ``acknowledged``: recovery never undoes it."""
    connection.execute(
        _add,
        {
            "tick": next_tick(connection),
            "kind": kind,
            "parent": parent,
            "name": name,
            "ino": ino,
            "generation": generation_id,
            "source_parent": source_parent,
            "source_name": source_name,
            "winner": winner,
            "removed_ns": now_ns,
            "acknowledged": acknowledged,
        },
    )


def held(connection: Connection, oldest_unsealed: int | None) -> list[RemovalRow]:
    """Records that must not be freed, newest first; ``oldest_unsealed`` is the tick of the longest unsealed generation."""
    query = select(removal).where(_held).order_by(removal.c.tick.desc())
    return _rows(connection, query, {"oldest": _NEVER if oldest_unsealed is None else oldest_unsealed})


def free_to_go(
    connection: Connection, oldest_unsealed: int | None, removed_before_ns: int, limit: int, after_tick: int = 0
) -> list[RemovalRow]:
    """Up to ``limit`` records, oldest first, that nothing holds and whose removal lies before ``removed_before_ns``.

    Records up to ``after_tick`` are passed over.
    """
    query = (
        select(removal)
        .where(~_held, removal.c.removed_ns < removed_before_ns, removal.c.tick > after_tick)
        .order_by(removal.c.tick)
        .limit(limit)
    )
    return _rows(connection, query, {"oldest": _NEVER if oldest_unsealed is None else oldest_unsealed})


def of_name(connection: Connection, parent: int, name: bytes) -> list[RemovalRow]:
    """What this name lost, newest first."""
    return _rows(
        connection,
        select(removal).where(removal.c.parent == parent, removal.c.name == name).order_by(removal.c.tick.desc()),
    )


def of_inode(connection: Connection, ino: int) -> list[RemovalRow]:
    """Records in which the inode, or a generation of it, was lost, newest first."""
    return _rows(connection, select(removal).where(removal.c.ino == ino).order_by(removal.c.tick.desc()))


def in_directory(connection: Connection, parent: int) -> list[RemovalRow]:
    """What the names of a directory lost, newest first."""
    return _rows(connection, select(removal).where(removal.c.parent == parent).order_by(removal.c.tick.desc()))


def everything(connection: Connection) -> list[RemovalRow]:
    """The whole log, newest first."""
    return _rows(connection, select(removal).order_by(removal.c.tick.desc()))


def predecessors(connection: Connection, generation_id: int) -> list[RemovalRow]:
    """The records of the generations that this one replaced, newest first; mostly one at most."""
    return _rows(connection, _predecessors, {"g": generation_id})


def of_generation(connection: Connection, generation_id: int) -> RemovalRow | None:
    """The record that keeps this replaced generation."""
    found = _rows(
        connection,
        select(removal).where(
            removal.c.ino == _ino_of_generation,
            removal.c.kind == RemovalKind.REPLACED,
            removal.c.generation == bindparam("g"),
        ),
        {"g": generation_id},
    )
    return found[0] if found else None


def set_winner(connection: Connection, old_generation: int, new_generation: int) -> None:
    """Let what ``old_generation`` had replaced count as replaced by ``new_generation``."""
    connection.execute(
        update(removal)
        .where(removal.c.kind == RemovalKind.REPLACED, removal.c.winner == old_generation)
        .values(winner=new_generation)
    )


def unacknowledged(connection: Connection) -> tuple[set[int], set[int]]:
    """Inodes that won a name, and directories, of the records that an fsync could still make final."""
    rows = connection.execute(
        select(removal.c.kind, removal.c.ino, removal.c.winner, removal.c.parent, removal.c.source_parent).where(
            removal.c.kind != RemovalKind.REPLACED, removal.c.acknowledged.is_(False)
        )
    ).all()
    winners = {row.winner for row in rows} | {row.ino for row in rows if row.kind == RemovalKind.EXCHANGED}
    directories = {row.parent for row in rows} | {row.source_parent for row in rows}
    return winners - {None}, directories - {None}


def unacknowledged_winners(connection: Connection, directory: int) -> set[int]:
    """Files that changes in ``directory`` gave a name or a new content, wherever they are now: an fsync of it seals them."""
    rows = connection.execute(
        select(removal.c.ino, removal.c.winner, removal.c.kind).where(
            or_(removal.c.parent == directory, removal.c.source_parent == directory),
            removal.c.kind != RemovalKind.UNLINKED,
            removal.c.acknowledged.is_(False),
        )
    ).all()
    winners = {row.winner for row in rows if row.kind != RemovalKind.REPLACED}
    return winners | {row.ino for row in rows if row.kind != RemovalKind.RENAMED_OVER}


def remove(connection: Connection, tick: int) -> None:
    """Take a record out of the log."""
    connection.execute(delete(removal).where(removal.c.tick == tick))


def acknowledge(connection: Connection, *, winner: int | None = None, directory: int | None = None) -> int:
    """Make final the changes by which inode ``winner`` got its names, or all those in ``directory``. Returns how many.

    Names only: a replaced content is final when its successor is finished, see :func:`acknowledge_replacement`.
    """
    # In an exchange the loser, too, won a name.
    condition = or_(removal.c.winner == winner, and_(removal.c.kind == RemovalKind.EXCHANGED, removal.c.ino == winner))
    if directory is not None:
        condition = or_(removal.c.parent == directory, removal.c.source_parent == directory)
    condition = and_(condition, removal.c.kind != RemovalKind.REPLACED, removal.c.acknowledged.is_(False))
    return connection.execute(update(removal).where(condition).values(acknowledged=True)).rowcount


def acknowledge_replacement(connection: Connection, generation_id: int) -> None:
    """Make final that this generation replaced another: an fsync covered it, or it was sealed whole.

    From then on recovery never takes its predecessor back, also when it is edited in place and torn by a crash.
    """
    connection.execute(_acknowledge_replacement, {"g": generation_id})


def forget_names_of(connection: Connection, ino: int) -> None:
    """Take the records of names that the inode lost out of the log."""
    connection.execute(delete(removal).where(removal.c.ino == ino, removal.c.kind != RemovalKind.REPLACED))


def mentions(connection: Connection, ino: int) -> bool:
    """Whether any record still needs the inode."""
    return connection.execute(select(exists().where(removal.c.ino == ino))).scalar_one()


def images_kept(connection: Connection, known: set[int]) -> list[tuple[int, str]]:
    """Image id and stripes (text) of every generation that only the log keeps: replaced ones, and those of inodes without a name.

    Not those of nameless inodes among ``known``, which somebody still has open, nor what is in quarantine.
    """
    rows = connection.execute(
        select(image.c.id, image.c.stripes, generation.c.ino, generation.c.current)
        .select_from(
            image.join(generation, image.c.generation == generation.c.id).join(inode, generation.c.ino == inode.c.ino)
        )
        .where(or_(generation.c.current.is_(False), inode.c.nlink == 0))
        .where(generation.c.id.not_in(select(quarantine.c.generation)))
    )
    return [(image_id, stripes) for image_id, stripes, ino, current in rows if not (current and ino in known)]


def quarantine_generation(
    connection: Connection, generation_id: int, *, parent: int, name: bytes, reason: str, now_ns: int
) -> None:
    """Put a generation into quarantine; it is sealed from then on, with what it has."""
    connection.execute(
        insert(quarantine).values(
            generation=generation_id, parent=parent, name=name, reason=reason, quarantined_ns=now_ns
        )
    )
    connection.execute(
        update(generation)
        .where(generation.c.id == generation_id)
        .values(current=False, state=State.SEALED, unsealed_since=None)
    )


def quarantined(connection: Connection) -> list[QuarantineRow]:
    """What is in quarantine, oldest first."""
    rows = connection.execute(select(quarantine).order_by(quarantine.c.quarantined_ns, quarantine.c.generation))
    return [QuarantineRow(*row) for row in rows]


def release_from_quarantine(connection: Connection, generation_id: int) -> None:
    """Take a generation out of quarantine."""
    connection.execute(delete(quarantine).where(quarantine.c.generation == generation_id))


def quarantined_of(connection: Connection, ino: int) -> set[int]:
    """The generations of the inode that are in quarantine."""
    query = select(generation.c.id).where(generation.c.ino == ino, generation.c.id == quarantine.c.generation)
    return set(connection.execute(query).scalars())
