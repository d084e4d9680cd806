"""Queries about generations and their images: what is sealed, torn or landing, and which lanes hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, bindparam, delete, exists, func, insert, or_, select, update

from ckptfs.meta.schema import State, clock, generation, image, inode


@dataclass(frozen=True, slots=True)
class ImageRow:
    """Where an image lies: lane *k* is a file on stripe ``stripes[k]``; ``len(stripes)`` is its width."""

    id: int
    chunk_size: int
    first: int
    stripes: tuple[int, ...]
    lane_sizes: tuple[int, ...] = ()
    """Bytes in each lane at the last seal; a lane that is shorter now has lost some. Empty: never sealed whole."""


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """One version of a file's content; the columns are explained in ``schema.py``."""

    id: int
    ino: int
    current: bool
    state: State
    size: int
    sealed_size: int | None
    flushed: bool
    unsealed_since: int | None
    acknowledged_parent: int | None
    acknowledged_name: bytes | None
    created_ns: int
    image: ImageRow | None


_columns = (
    generation.c.id,
    generation.c.ino,
    generation.c.current,
    generation.c.state,
    generation.c.size,
    generation.c.sealed_size,
    generation.c.flushed,
    generation.c.unsealed_since,
    generation.c.acknowledged_parent,
    generation.c.acknowledged_name,
    generation.c.created_ns,
    image.c.id,
    image.c.chunk_size,
    image.c.first,
    image.c.stripes,
    image.c.lane_sizes,
)
_selection = select(*_columns).select_from(generation.outerjoin(image, image.c.generation == generation.c.id))
_current = _selection.where(generation.c.ino == bindparam("i"), generation.c.current)
_find = _selection.where(generation.c.id == bindparam("g"))
_tick = update(clock).values(tick=clock.c.tick + 1).returning(clock.c.tick)
_add = insert(generation).returning(generation.c.id)
_flushed = (
    update(generation).where(generation.c.id == bindparam("g")).values(flushed=bindparam("f"), size=bindparam("s"))
)
_dirty = (
    update(generation)
    .where(generation.c.id == bindparam("g"))
    .values(state=State.LANDING, flushed=False, unsealed_since=bindparam("t"))
)
_sealed = (
    update(generation)
    .where(generation.c.id == bindparam("g"))
    .values(
        state=bindparam("st"),
        size=bindparam("s"),
        sealed_size=bindparam("ss"),
        unsealed_since=bindparam("t"),
        flushed=bindparam("f"),
        acknowledged_parent=None,  # by now it has the name that counts
        acknowledged_name=None,
    )
)
_lane_sizes = update(image).where(image.c.generation == bindparam("g")).values(lane_sizes=bindparam("s"))
_shown = and_(generation.c.current, exists().where(inode.c.ino == generation.c.ino, inode.c.nlink > 0))
_oldest_unsealed = select(func.min(generation.c.unsealed_since))


def _row(row: Row[*tuple[Any, ...]] | None) -> GenerationRow | None:
    if row is None:
        return None
    columns: list[Any] = list(row)
    image_id, chunk_size, first, stripes, lane_sizes = columns[11:]
    where = None
    if image_id is not None:
        where = ImageRow(image_id, chunk_size, first, _parse_numbers(stripes), _parse_numbers(lane_sizes or ""))
    columns[3] = State(columns[3])
    return GenerationRow(*columns[:11], image=where)


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split())


def _format_numbers(numbers: Sequence[int]) -> str:
    return " ".join(str(number) for number in numbers)


def next_tick(connection: Connection) -> int:
    """Advance the clock and return its new value."""
    return connection.execute(_tick).scalar_one()


def find(connection: Connection, generation_id: int) -> GenerationRow | None:
    """A generation by id."""
    return _row(connection.execute(_find, {"g": generation_id}).first())


def the(connection: Connection, generation_id: int) -> GenerationRow:
    """A generation that must exist."""
    found = find(connection, generation_id)
    assert found is not None, f"no generation {generation_id}"
    return found


def current(connection: Connection, ino: int) -> GenerationRow | None:
    """The generation that the inode shows."""
    return _row(connection.execute(_current, {"i": ino}).first())


def of_inode(connection: Connection, ino: int) -> list[GenerationRow]:
    """Every generation of an inode, oldest first."""
    return _rows(connection, _selection.where(generation.c.ino == ino).order_by(generation.c.id))


def landing(connection: Connection) -> list[GenerationRow]:
    """Every generation that is not sealed, the one that has been so longest first."""
    return _rows(
        connection, _selection.where(generation.c.unsealed_since.is_not(None)).order_by(generation.c.unsealed_since)
    )


def doubtful(connection: Connection) -> list[GenerationRow]:
    """Every generation that a crash puts in question, by id: those not sealed, and current ones that are torn."""
    torn = and_(generation.c.current, generation.c.flushed.is_(False))
    in_question = or_(generation.c.unsealed_since.is_not(None), torn)
    return _rows(connection, _selection.where(in_question).order_by(generation.c.id))


def everything(connection: Connection) -> list[GenerationRow]:
    """Every generation, by id."""
    return _rows(connection, _selection.order_by(generation.c.id))


def with_images(connection: Connection) -> list[GenerationRow]:
    """Every generation that has an image."""
    return _rows(connection, _selection.where(image.c.id.is_not(None)).order_by(generation.c.id))


def _rows(connection: Connection, query: Select[*tuple[Any, ...]]) -> list[GenerationRow]:
    return [found for row in connection.execute(query) if (found := _row(row)) is not None]


def oldest_unsealed(connection: Connection) -> int | None:
    """The tick since which some generation has been unsealed; None when all are sealed."""
    return connection.execute(_oldest_unsealed).scalar()


def count_by_state(connection: Connection) -> dict[State, int]:
    """How many files with a name are in each state."""
    rows = connection.execute(select(generation.c.state, func.count()).where(_shown).group_by(generation.c.state))
    found = {State(state): number for state, number in rows}
    return {state: found.get(state, 0) for state in State}


def count_torn(connection: Connection) -> int:
    """How many files with a name had a write after their last FLUSH."""
    return connection.execute(
        select(func.count()).select_from(generation).where(_shown, generation.c.flushed.is_(False))
    ).scalar_one()


def current_bytes(connection: Connection) -> int:
    """The size of all files together, bytes."""
    return connection.execute(select(func.coalesce(func.sum(generation.c.size), 0)).where(_shown)).scalar_one()


def add(connection: Connection, ino: int, now_ns: int, *, flushed: bool = True) -> GenerationRow:
    """Give the inode, which must have no current generation, a new and empty one; not ``flushed`` when it is yet to be written."""
    tick = next_tick(connection)
    new = connection.execute(
        _add,
        {
            "ino": ino,
            "current": True,
            "state": State.LANDING,
            "size": 0,
            "flushed": flushed,
            "unsealed_since": tick,
            "created_ns": now_ns,
        },
    ).scalar_one()
    return GenerationRow(new, ino, True, State.LANDING, 0, None, flushed, tick, None, None, now_ns, None)


def set_current(connection: Connection, ino: int, generation_id: int | None) -> None:
    """Let the inode show this one of its generations, or none."""
    connection.execute(update(generation).where(generation.c.ino == ino, generation.c.current).values(current=False))
    if generation_id is not None:
        connection.execute(update(generation).where(generation.c.id == generation_id).values(current=True))


def set_inode(connection: Connection, generation_id: int, ino: int) -> None:
    """Hand a generation to another inode."""
    connection.execute(update(generation).where(generation.c.id == generation_id).values(ino=ino))


def set_flushed(connection: Connection, generation_id: int, *, flushed: bool, size: int) -> None:
    """The flushed mark, with the size (bytes) that holds from now on."""
    connection.execute(_flushed, {"g": generation_id, "f": flushed, "s": size})


def mark_dirty(connection: Connection, generation_id: int) -> int:
    """The dirty mark: landing again, and torn until the next FLUSH. Returns the tick."""
    tick = next_tick(connection)
    connection.execute(_dirty, {"g": generation_id, "t": tick})
    return tick


def set_size(connection: Connection, generation_id: int, size: int) -> None:
    """A truncate: the size, and never more than that on disk for certain."""
    connection.execute(
        update(generation)
        .where(generation.c.id == generation_id)
        .values(size=size, sealed_size=func.min(generation.c.sealed_size, size))
    )


def set_sealed(
    connection: Connection,
    generation_id: int,
    *,
    size: int,
    sealed_size: int,
    unsealed_since: int | None,
    flushed: bool,
) -> None:
    """The seal: ``sealed_size`` bytes are on disk. ``unsealed_since`` is a tick when bytes came in meanwhile, else None."""
    state = State.SEALED if unsealed_since is None else State.LANDING
    connection.execute(
        _sealed, {"g": generation_id, "st": state, "s": size, "ss": sealed_size, "t": unsealed_since, "f": flushed}
    )


def acknowledge_empty(connection: Connection, generation_id: int, parent: int, name: bytes) -> None:
    """An fsync found the generation empty under this name: the name must survive, the content is yet to come."""
    connection.execute(
        update(generation)
        .where(generation.c.id == generation_id)
        .values(sealed_size=0, acknowledged_parent=parent, acknowledged_name=name)
    )


def add_image(
    connection: Connection,
    generation_id: int,
    *,
    chunk_size: int,
    first: int,
    stripes: tuple[int, ...],
    owner: str,
    boot_id: str,
) -> ImageRow:
    """Record the image of a generation, before any of its lanes exists."""
    image_id = connection.execute(
        insert(image).returning(image.c.id),
        {
            "generation": generation_id,
            "chunk_size": chunk_size,
            "first": first,
            "stripes": _format_numbers(stripes),
            "owner": owner,
            "boot_id": boot_id,
        },
    ).scalar_one()
    return ImageRow(image_id, chunk_size, first, stripes)


def widen_image(connection: Connection, image_id: int, first: int, stripes: tuple[int, ...]) -> None:
    """Record the final width of an image, before a byte beyond its first chunk is written."""
    connection.execute(
        update(image).where(image.c.id == image_id).values(first=first, stripes=_format_numbers(stripes))
    )


def set_lane_sizes(connection: Connection, generation_id: int, lane_sizes: Sequence[int]) -> None:
    """Record how long the lanes of a generation's image are, all of it on disk."""
    connection.execute(_lane_sizes, {"g": generation_id, "s": _format_numbers(lane_sizes)})


def remove(connection: Connection, generation_id: int) -> None:
    """Delete a generation; its image, if any, is left ``dropping``."""
    connection.execute(update(image).where(image.c.generation == generation_id).values(generation=None))
    connection.execute(delete(generation).where(generation.c.id == generation_id))


def dropping_images(connection: Connection) -> list[ImageRow]:
    """Images without a generation, whose lanes are to be unlinked."""
    rows = connection.execute(
        select(image.c.id, image.c.chunk_size, image.c.first, image.c.stripes).where(image.c.generation.is_(None))
    )
    return [ImageRow(found, chunk_size, first, _parse_numbers(stripes)) for found, chunk_size, first, stripes in rows]


def forget_images(connection: Connection, image_ids: list[int]) -> None:
    """Delete image rows whose lanes are gone."""
    connection.execute(delete(image).where(image.c.id.in_(image_ids)))
