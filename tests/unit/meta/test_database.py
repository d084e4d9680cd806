"""The database file: versions, transactions, barriers, damage."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection, select, text, update

from ckptfs.errors import DamagedData, NewerSchema
from ckptfs.meta import database as database_module
from ckptfs.meta import inodes, names, runs
from ckptfs.meta.database import Database
from ckptfs.meta.schema import MIGRATIONS, ROOT_INO, SCHEMA_VERSION, schema_version


def set_version(connection: Connection, version: int) -> None:
    connection.execute(update(schema_version).values(version=version))


def get_version(connection: Connection) -> int:
    return connection.execute(select(schema_version.c.version)).scalar_one()


class Fsyncs:
    """Counts ``os.fsync`` in the database module, and can hold the next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.reached = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()
        real = os.fsync

        def fsync(descriptor: int) -> None:
            self.count += 1
            self.reached.set()
            assert self.may_go.wait(20)
            real(descriptor)

        monkeypatch.setattr(database_module.os, "fsync", fsync)


# --- versions ----------------------------------------------------------------------------------------------------------


def test_a_new_database_has_the_current_version_and_a_root(database: Database) -> None:
    assert database.transact(get_version) == SCHEMA_VERSION
    root = database.transact(inodes.find, ROOT_INO)
    assert root is not None
    assert root.is_directory
    assert root.nlink == 2
    assert database.transact(names.is_empty, ROOT_INO)
    assert database.transact(runs.last) is None


def test_a_database_of_a_later_version_is_refused_and_left_as_it_is(path: Path) -> None:
    database = Database.open(path)
    database.transact(set_version, SCHEMA_VERSION + 1)
    database.close()
    before = path.read_bytes()
    with pytest.raises(NewerSchema, match=f"version {SCHEMA_VERSION + 1}; this ckptfs knows up to {SCHEMA_VERSION}"):
        Database.open(path)
    assert path.read_bytes() == before


def test_a_database_of_an_earlier_version_is_migrated_step_by_step_and_keeps_what_it_holds(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Database.open(path)
    old.transact(names.add, ROOT_INO, b"kept", 7)
    old.close()

    def second(connection: Connection) -> None:
        assert get_version(connection) == SCHEMA_VERSION
        connection.execute(text("CREATE TABLE later (x INTEGER)"))

    def third(connection: Connection) -> None:
        assert get_version(connection) == SCHEMA_VERSION + 1
        connection.execute(text("INSERT INTO later VALUES (3)"))

    steps = {SCHEMA_VERSION + 1: second, SCHEMA_VERSION + 2: third}
    monkeypatch.setattr(database_module, "MIGRATIONS", {**MIGRATIONS, **steps})
    monkeypatch.setattr(database_module, "SCHEMA_VERSION", SCHEMA_VERSION + 2)
    for _ in range(2):  # the second opening has nothing to do
        database = Database.open(path)
        assert database.transact(get_version) == SCHEMA_VERSION + 2
        assert database.transact(
            lambda connection: connection.execute(text("SELECT x FROM later")).scalars().all()
        ) == [3]
        assert database.transact(names.find, ROOT_INO, b"kept") is not None
        database.close()


def test_a_migration_that_fails_leaves_the_old_version(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Database.open(path).close()

    def fail(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE later (x INTEGER)"))
        raise RuntimeError("half way")

    with monkeypatch.context() as patched:
        patched.setattr(database_module, "MIGRATIONS", {**MIGRATIONS, SCHEMA_VERSION + 1: fail})
        patched.setattr(database_module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        with pytest.raises(RuntimeError, match="half way"):
            Database.open(path)
    database = Database.open(path)
    assert database.transact(get_version) == SCHEMA_VERSION
    tables = database.transact(
        lambda connection: connection.execute(text("SELECT name FROM sqlite_master")).scalars().all()
    )
    assert "later" not in tables
    database.close()


# --- transactions ------------------------------------------------------------------------------------------------------


def test_a_transaction_that_raises_leaves_nothing(database: Database) -> None:
    def fail(connection: Connection) -> None:
        names.add(connection, ROOT_INO, b"f", 7)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        database.transact(fail)
    assert database.transact(names.find, ROOT_INO, b"f") is None
    assert not database.needs_barrier()


def test_transactions_of_several_threads_run_one_after_the_other(database: Database) -> None:
    def add_twice(connection: Connection, number: int) -> None:
        before = names.count(connection)
        names.add(connection, ROOT_INO, b"a%d" % number, 7)
        names.add(connection, ROOT_INO, b"b%d" % number, 7)
        assert names.count(connection) == before + 2

    threads = [threading.Thread(target=database.transact, args=(add_twice, number)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert database.transact(names.count) == 16


def test_what_was_committed_is_there_for_the_next_process_without_a_barrier(path: Path) -> None:
    database = Database.open(path)
    database.transact(names.add, ROOT_INO, b"f", 7)
    other = sqlite3.connect(path)
    assert other.execute("SELECT name FROM entry").fetchall() == [(b"f",)]
    other.close()
    database.close()


def test_a_full_device_is_enospc(database: Database) -> None:
    pages = database.transact(lambda connection: connection.execute(text("PRAGMA page_count")).scalar_one())
    database._driver.execute(f"PRAGMA max_page_count={pages}")

    def add_much(connection: Connection) -> None:
        for number in range(5000):
            names.add(connection, ROOT_INO, b"%d" % number * 40, 7)

    with pytest.raises(OSError, match="metadata database") as failed:
        database.transact(add_much)
    assert failed.value.errno == 28
    assert database.transact(names.count) == 0


# --- barriers ----------------------------------------------------------------------------------------------------------


def test_a_barrier_flushes_once_and_again_only_after_a_change(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsyncs = Fsyncs(monkeypatch)
    database.barrier()
    assert fsyncs.count == 0
    database.transact(names.add, ROOT_INO, b"f", 7)
    assert database.needs_barrier()
    database.barrier()
    database.barrier()
    assert fsyncs.count == 1
    assert not database.needs_barrier()
    database.transact(names.find, ROOT_INO, b"f")
    assert not database.needs_barrier()
    database.barrier()
    assert fsyncs.count == 1


def test_callers_that_come_while_a_barrier_runs_share_the_next_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsyncs = Fsyncs(monkeypatch)
    database.transact(names.add, ROOT_INO, b"first", 7)
    fsyncs.may_go.clear()
    threads = [threading.Thread(target=database.barrier)]
    threads[0].start()
    assert fsyncs.reached.wait(20)
    database.transact(names.add, ROOT_INO, b"second", 7)  # the connection is free while the log is flushed
    threads += [threading.Thread(target=database.barrier) for _ in range(5)]
    for thread in threads[1:]:
        thread.start()
    fsyncs.may_go.set()
    for thread in threads:
        thread.join(20)
    assert fsyncs.count == 2
    assert not database.needs_barrier()


def test_after_a_barrier_that_failed_none_succeeds_because_the_kernel_tells_of_a_lost_page_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database.open(path)
    database.transact(names.add, ROOT_INO, b"f", 7)
    with monkeypatch.context() as patched:

        def fail(_descriptor: int) -> None:
            raise OSError(5, "the device")

        patched.setattr(database_module.os, "fsync", fail)
        with pytest.raises(OSError, match="the device"):
            database.barrier()
    assert database.needs_barrier()
    with pytest.raises(OSError, match="the metadata log was not written"):
        database.barrier()
    with pytest.raises(OSError, match="the metadata log was not written"):
        database.close()
    Database.open(path).close()


def test_a_grown_log_is_folded_into_the_database(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.transact(names.add, ROOT_INO, b"f", 7)
    before = path.stat().st_size
    database.fold_log()
    assert path.stat().st_size == before
    monkeypatch.setattr(database_module, "_CHECKPOINT_AT_BYTES", 1)
    database.fold_log()
    assert path.stat().st_size > before
    assert database.transact(names.find, ROOT_INO, b"f") is not None


# --- damage ------------------------------------------------------------------------------------------------------------


def filled(path: Path) -> None:
    database = Database.open(path)
    database.transact(lambda connection: [names.add(connection, ROOT_INO, b"name %d" % n, 7) for n in range(2000)])
    database.close()


@pytest.mark.parametrize("damage", ["no database at all", "the first page", "cut in half"])
def test_a_damaged_database_is_refused_with_a_sentence_and_not_written_to(damage: str, path: Path) -> None:
    filled(path)
    whole = path.read_bytes()
    match damage:
        case "no database at all":
            path.write_bytes(b"this is a text file, and not a short one. " * 500)
        case "the first page":
            path.write_bytes(b"\xff" * 100 + whole[100:])
        case _:
            path.write_bytes(whole[: len(whole) // 2 // 4096 * 4096])
    before = path.read_bytes()
    with pytest.raises(DamagedData, match=f"the metadata database {path} is damaged"):
        Database.open(path)
    assert path.read_bytes() == before


def test_damage_in_pages_that_opening_does_not_read_is_an_integrity_error_and_an_error_of_whoever_reads_them(
    path: Path,
) -> None:
    filled(path)
    whole = path.read_bytes()
    third = len(whole) // 3 // 4096 * 4096
    path.write_bytes(whole[:third] + b"\xa5" * third + whole[2 * third :])
    database = Database.open(path)
    assert database.integrity_errors(quickly=True)
    assert database.integrity_errors()
    with pytest.raises(DamagedData, match=f"the metadata database {path} is damaged"):
        database.transact(names.everything)
    database.close()


@pytest.mark.parametrize("quickly", [True, False])
def test_a_sound_database_has_no_integrity_errors(quickly: bool, database: Database) -> None:
    assert database.integrity_errors(quickly=quickly) == []
