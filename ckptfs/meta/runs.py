"""Queries about runs: which process served the volume, in which instance, and whether it ended as it should."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select, update

from ckptfs.meta.schema import run


@dataclass(frozen=True, slots=True)
class RunRow:
    """One time a process served the volume."""

    id: int
    instance: str | None
    started_ns: int
    clean: bool


def last(connection: Connection) -> RunRow | None:
    """The latest run, or None for a volume never served."""
    row = connection.execute(select(run).order_by(run.c.id.desc()).limit(1)).first()
    return None if row is None else RunRow(*row)


def begin(connection: Connection, instance: str | None, now_ns: int) -> int:
    """Record that a run begins; returns its id. Earlier rows are of no more use."""
    connection.execute(delete(run))
    return connection.execute(
        insert(run).values(instance=instance, started_ns=now_ns, clean=False).returning(run.c.id)
    ).scalar_one()


def end_clean(connection: Connection, run_id: int) -> None:
    """Record that everything is sealed and the process ends as it should."""
    connection.execute(update(run).where(run.c.id == run_id).values(clean=True))
