#!/usr/bin/env python3
"""What names cost, and what the daemon's memory does while much is written.

    python tools/bench/metadata.py --below /data [--files 10000] [--gib 8] [--json FILE]

Small saves (create, write 4 KiB, close, rename) a second, on the mount and in a native directory; ``ls -l`` of a large
directory with cold caches; the rename of a directory that holds much against one that is empty; the daemon's resident memory while a
large file is written; a flush of the metadata log after each transaction against one for many. Needs root, for the cold list.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import tempfile
from pathlib import Path

import rig

_SMALL = os.urandom(4096)
_BLOCK = os.urandom(1 << 20)


def small_saves(directory: Path, count: int) -> float:
    """Saves of small files in the usual way, a second."""

    def save_all() -> None:
        for number in range(count):
            temporary = directory / f"{number}.tmp"
            temporary.write_bytes(_SMALL)
            temporary.rename(directory / f"{number}")

    return count / rig.seconds(save_all)


def list_cold(directory: Path) -> float:
    """Seconds of ``ls -l``, names and attributes forgotten before."""
    rig.flush()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    return rig.seconds(lambda: subprocess.run(["ls", "-l", str(directory)], check=True, stdout=subprocess.DEVNULL))


def rename_s(directory: Path) -> float:
    """The median seconds of renaming a directory to and fro."""
    other = directory.with_name(directory.name + ".renamed")
    took_s: list[float] = []
    for _ in range(25):
        took_s += [rig.seconds(lambda: directory.rename(other)), rig.seconds(lambda: other.rename(directory))]
    return statistics.median(took_s)


def write_while_watching(mounted: rig.Mounted, directory: Path, gib: int) -> tuple[float, list[int]]:
    """Write ``gib`` files of 1 GiB; returns GiB a second and the resident bytes after each."""
    resident: list[int] = []

    def write_all() -> None:
        for number in range(gib):
            with (directory / f"{number}").open("wb", buffering=0) as file:
                for _ in range(1024):
                    file.write(_BLOCK)
            resident.append(mounted.resident_bytes())

    return gib / rig.seconds(write_all), resident


def commits_a_second(parent: Path, synchronous: str, count: int) -> float:
    """Transactions a second of SQLite in WAL mode with ``synchronous`` as given."""
    with tempfile.TemporaryDirectory(dir=parent) as directory:
        connection = sqlite3.connect(Path(directory) / "test.sqlite", isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("CREATE TABLE names (parent INTEGER, name BLOB, inode INTEGER, PRIMARY KEY (parent, name))")

        def commit_all() -> None:
            for number in range(count):
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT INTO names VALUES (1, ?, ?)", (str(number).encode(), number))
                connection.execute("COMMIT")

        rate = count / rig.seconds(commit_all)
        connection.close()
    return rate


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--below", type=Path, required=True, metavar="DIR", help="where to make the volume")
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--gib", type=int, default=8, help="how much to write while watching the daemon's memory")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    found: dict[str, object] = {}
    with (
        rig.mounted(args.below) as mounted,
        tempfile.TemporaryDirectory(dir=args.below) as native,
    ):
        many, full, empty = (mounted.mountpoint / name for name in ("many", "full", "empty"))
        for directory in (many, full, empty):
            directory.mkdir()
        found["small saves/s, native"] = small_saves(Path(native), args.files)
        found["small saves/s, mount"] = small_saves(many, args.files)
        found["ls -l cold, s"] = [list_cold(many) for _ in range(3)]
        rate, resident = write_while_watching(mounted, full, args.gib)
        found["GiB/s written"] = rate
        found["daemon resident MiB, after each GiB"] = [count >> 20 for count in resident]
        found["daemon resident MiB, highest"] = mounted.resident_bytes(peak=True) >> 20
        found["rename, full directory, ms"] = rename_s(full) * 1e3
        found["rename, empty directory, ms"] = rename_s(empty) * 1e3
    found["commits/s, flushed each (FULL)"] = commits_a_second(args.below, "FULL", 1000)
    found["commits/s, log flushed later (NORMAL)"] = commits_a_second(args.below, "NORMAL", 1000)
    for what, figure in found.items():
        print(f"{what:40} {_shown(figure)}")
    rig.write_json(args.json, found)


def _shown(figure: object) -> str:
    if isinstance(figure, list):
        return " ".join(_shown(one) for one in figure)
    return f"{figure:.2f}" if isinstance(figure, float) else str(figure)


if __name__ == "__main__":
    main()
