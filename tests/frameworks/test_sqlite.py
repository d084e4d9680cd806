"""SQLite (Optuna, MLflow), with a reader beside the writer."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.frameworks.conftest import Pair
from tests.support.mounted import MountedVolume

READER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=30)
print("ready", flush=True)
seen = -1
while seen < 300:
    count, total = database.execute("SELECT count(*), coalesce(sum(value), 0) FROM metric").fetchone()
    assert count >= seen and count % 10 == 0 and total == count * (count - 1) // 2, (count, total)
    seen = count
print(seen)
"""


def write(path: Path, journal: str) -> None:
    """30 transactions of 10 rows, each of which a reader sees whole or not at all."""
    with closing(sqlite3.connect(path, timeout=30)) as database:
        assert database.execute(f"PRAGMA journal_mode={journal}").fetchone() == (journal,)
        database.execute("CREATE TABLE metric (value INTEGER, padding BLOB)")
        database.commit()
        with subprocess.Popen(
            [sys.executable, "-c", READER, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as reader:
            try:
                assert reader.stdout is not None
                assert reader.stdout.readline() == "ready\n"
                for start in range(0, 300, 10):
                    with database:
                        rows = [(value, b"p" * 3000) for value in range(start, start + 10)]
                        database.executemany("INSERT INTO metric VALUES (?, ?)", rows)
                out, err = reader.communicate(timeout=60)
            finally:
                reader.kill()
        assert (out, reader.returncode) == ("300\n", 0), err
        database.execute("DELETE FROM metric WHERE value % 2")
        database.commit()
        database.execute("VACUUM")


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_database_is_written_and_read_at_once(pair: Pair, journal: str) -> None:
    for directory in pair:
        write(directory / "study.db", journal)
    for directory in pair:
        with closing(sqlite3.connect(directory / "study.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            assert database.execute("SELECT count(*), sum(value) FROM metric").fetchone() == (150, 150 * 149)
    assert sorted(path.name for path in pair.mount.iterdir()) == sorted(path.name for path in pair.native.iterdir())


def test_a_committed_row_is_there_after_a_remount(mounted: MountedVolume) -> None:
    path = mounted.mountpoint / "study.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=wal")
        database.execute("CREATE TABLE t (x)")
        database.execute("INSERT INTO t VALUES (42)")
        database.commit()
    mounted.remount()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT x FROM t").fetchall() == [(42,)]
