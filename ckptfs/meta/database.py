"""The database file: opening, migrating, transactions, and the barrier that makes them durable.

A transaction is written to the write-ahead log and not flushed (``synchronous=NORMAL``): it survives the death of this process. After a
loss of power a prefix of the transactions survives. :meth:`Database.barrier` flushes the log; that costs one device flush, shared by
all that wait, where ``synchronous=FULL`` would pay one for every create, rename and flushed mark (docs/benchmarks.md has the figures).
The barrier flushes the log through a file descriptor of its own, so it never waits for the connection, nor the connection for it. (SQLite
takes its POSIX locks on the database and ``-shm`` files only, so opening and closing ``-wal`` beside it is harmless.)

Methods block; the caller uses threads. One writer at a time: :meth:`Database.transact` takes a lock.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, create_engine, event, inspect, select, update
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import StaticPool

from ckptfs import faults
from ckptfs.errors import DamagedData, NewerSchema
from ckptfs.meta.schema import MIGRATIONS, SCHEMA_VERSION, schema_version

P = ParamSpec("P")
T = TypeVar("T")

_CHECKPOINT_AT_BYTES = 8 << 20
"""Fold the log into the database when it is larger: small enough to recover in a blink, large enough to be rare."""


class Database:
    """The metadata database of one volume, opened by one process."""

    def __init__(self, path: Path, connection: Connection) -> None:
        self._path = path
        self._log_path = path.with_name(path.name + "-wal")
        self._connection = connection
        self._lock = threading.Lock()
        self._commits = 0
        self._durable_commits = 0
        self._barrier_lock = threading.Lock()
        self._lost_log: OSError | None = None

    @classmethod
    def open(cls, path: Path) -> Database:
        """Open the database at ``path``, creating it when there is none and migrating an older one.

        Raises :class:`NewerSchema` for one written by a later ckptfs, :class:`DamagedData` when it is no sound SQLite database.
        """
        engine = create_engine(
            f"sqlite:///{path}", connect_args={"check_same_thread": False, "timeout": 30}, poolclass=StaticPool
        )
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", _begin_immediate)
        try:
            connection = engine.connect()
            connection.rollback()
            database = cls(path, connection)
            database.transact(_migrate)
        except Exception as why:
            if isinstance(why.__cause__, sqlite3.DatabaseError) and (
                "malformed" in f"{why}" or "not a database" in f"{why}"
            ):
                raise DamagedData(f"the metadata database {path} is damaged: {why.__cause__}") from why
            raise
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        database.barrier()
        return database

    def transact(self, action: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``action(connection, ...)`` as one transaction and return what it returns; an exception rolls it back.

        Raises ``OSError`` (ENOSPC, EIO) when the database cannot be written or read, :class:`DamagedData` when SQLite
        finds it damaged.
        """
        with self._lock:
            try:
                with self._connection.begin():
                    before: int = self._driver.total_changes
                    result = action(self._connection, *args, **kwargs)
                    changed = self._driver.total_changes != before
            except DatabaseError as why:
                raise self._explained(why) from why
            if changed:
                self._commits += 1
            return result

    def barrier(self) -> None:
        """Return when every transaction that ended before the call is on disk.

        Raises ``OSError``, and from then on always: the kernel tells of a lost page once, and a flush after that would succeed
        without it.
        """
        wanted = self._commits
        with self._barrier_lock:
            if self._lost_log is not None:
                raise OSError(self._lost_log.errno, f"the metadata log was not written: {self._lost_log.strerror}")
            if self._durable_commits >= wanted:
                return
            covers = self._commits
            faults.hit("barrier.before")
            try:
                log = os.open(self._log_path, os.O_RDONLY)
            except FileNotFoundError:
                log = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(log)
            except OSError as why:
                self._lost_log = why
                raise
            finally:
                os.close(log)
            self._durable_commits = covers
            faults.hit("barrier.after")

    def needs_barrier(self) -> bool:
        """Whether a barrier would have something to do."""
        return self._durable_commits < self._commits

    def fold_log(self) -> None:
        """Move a grown write-ahead log into the database, on a connection of its own, so that no transaction waits."""
        try:
            if self._log_path.stat().st_size < _CHECKPOINT_AT_BYTES:
                return
        except FileNotFoundError:
            return
        side = sqlite3.connect(self._path, timeout=1)
        try:
            side.execute("PRAGMA synchronous=NORMAL")
            side.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        finally:
            side.close()

    def integrity_errors(self, *, quickly: bool = False) -> list[str]:
        """What SQLite's own check finds wrong; empty when the database is sound.

        ``quickly`` leaves out the comparison of indexes with their tables, which takes most of the time.
        """
        check = "PRAGMA quick_check" if quickly else "PRAGMA integrity_check"
        try:
            with self._lock, self._connection.begin():
                rows = self._connection.exec_driver_sql(check).scalars().all()
        except DatabaseError as why:  # so damaged that the check itself stops
            return [str(why.orig)]
        return [str(row) for row in rows if row != "ok"]

    def close(self) -> None:
        """Flush and close. The log is folded into the database by SQLite as its last connection goes."""
        try:
            self.barrier()
        finally:
            with self._lock:
                self._connection.close()
                self._connection.engine.dispose()

    def _explained(self, why: DatabaseError) -> Exception:
        """What SQLite could not do, as the error of the device or the damage that it is; anything else as it came."""
        code = getattr(why.orig, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return DamagedData(f"the metadata database {self._path} is damaged: {why.orig}")
        number = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO}.get(code)
        return why if number is None else OSError(number, f"the metadata database: {why.orig}")

    @property
    def _driver(self) -> sqlite3.Connection:
        driver: Any = self._connection.connection.driver_connection
        return driver


def _configure(driver: sqlite3.Connection, _record: object) -> None:
    driver.isolation_level = None  # SQLAlchemy, not the driver, says BEGIN
    driver.execute("PRAGMA journal_mode=WAL")
    driver.execute("PRAGMA synchronous=NORMAL")
    driver.execute("PRAGMA wal_autocheckpoint=0")  # fold_log does it, off the path of a transaction
    driver.execute("PRAGMA foreign_keys=OFF")  # the log and the quarantine outlive what they name; fsck checks
    driver.execute("PRAGMA cache_size=-16384")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _migrate(connection: Connection) -> None:
    version = 0
    if inspect(connection).has_table("schema_version"):
        version = connection.execute(select(schema_version.c.version)).scalar_one()
    if version > SCHEMA_VERSION:
        raise NewerSchema(
            f"this volume's metadata has schema version {version}; this ckptfs knows up to {SCHEMA_VERSION}. "
            "Mount it with the version of ckptfs that wrote it, or a later one."
        )
    for step in range(version + 1, SCHEMA_VERSION + 1):
        MIGRATIONS[step](connection)
        connection.execute(update(schema_version).values(version=step))
