"""Several processes on one mount: they save steps, rename pointers over ``latest``, read, and delete old steps, all at once.

Every file is made of blocks that say what they are (:func:`block`): who wrote them, in which step, which block of which file, with
a checksum. So a reader can tell a whole file from one with bytes of another step, zeros, or parts missing.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from tests.model.rig import CHUNK_BYTES, Rig

BLOCK_BYTES = 4096
SHARD_BLOCKS = 5 * CHUNK_BYTES // BLOCK_BYTES // 2
"""Two chunks and a half."""
RUN_S = 5.0
LONG_RUN_S = 120.0
PATIENCE_S = 60.0
KEPT_STEPS = 3

_spawn = multiprocessing.get_context("spawn")
_header = struct.Struct("<4sIII32s")


def block(writer: int, step: int, index: int) -> bytes:
    """One block of a shard."""
    head = struct.pack("<III", writer, step, index)
    body = hashlib.shake_128(head).digest(BLOCK_BYTES - _header.size)
    return _header.pack(b"CKPT", writer, step, index, hashlib.sha256(head + body).digest()) + body


def shard(writer: int, step: int) -> bytes:
    """All blocks of a shard."""
    return b"".join(block(writer, step, index) for index in range(SHARD_BLOCKS))


def check_blocks(data: bytes, where: str) -> set[tuple[int, int]]:
    """Fail unless ``data`` is a run of sound blocks, each at its place; returns the (writer, step) pairs they are of."""
    assert len(data) % BLOCK_BYTES == 0, f"{where}: {len(data)} bytes"
    found: set[tuple[int, int]] = set()
    for index in range(len(data) // BLOCK_BYTES):
        piece = data[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES]
        magic, writer, step, own_index, checksum = _header.unpack_from(piece)
        assert magic == b"CKPT", f"{where}: block {index} begins {piece[:16].hex()}"
        head = struct.pack("<III", writer, step, own_index)
        assert checksum == hashlib.sha256(head + piece[_header.size :]).digest(), f"{where}: block {index} is mixed"
        assert own_index == index, f"{where}: block {index} says that it is {own_index}"
        found.add((writer, step))
    return found


def check_whole(data: bytes, where: str) -> tuple[int, int]:
    """Fail unless ``data`` is one whole shard; returns its writer and step."""
    assert len(data) == SHARD_BLOCKS * BLOCK_BYTES, f"{where}: {len(data)} bytes of {SHARD_BLOCKS * BLOCK_BYTES}"
    found = check_blocks(data, where)
    assert len(found) == 1, f"{where}: parts of {sorted(found)}"
    return found.pop()


# Each of the following runs in a process of its own, until ``stop`` is set.


def save_steps(top: Path, stop: Event, rank: int) -> None:
    """Write a shard of each step under a temporary name, rename it into place, point ``latest`` at it, delete an old one."""
    for step in _count(stop):
        directory = top / f"rank{rank}-step{step}"
        directory.mkdir()
        temporary = directory / ".shard"
        data = shard(rank, step)
        with open(temporary, "wb", buffering=0) as file:
            file.writelines(data[start : start + 37_000] for start in range(0, len(data), 37_000))
            if step % 3 == 0:
                os.fsync(file.fileno())
        temporary.rename(directory / "shard")
        pointer = top / f".latest-{rank}"
        pointer.write_bytes(data)
        pointer.rename(top / "latest")
        if step >= KEPT_STEPS:
            old = top / f"rank{rank}-step{step - KEPT_STEPS}"
            (old / "shard").unlink()
            old.rmdir()


def overwrite_in_place(top: Path, stop: Event, rank: int) -> None:
    """Write step after step over one file, with no truncate: readers may see blocks of several steps, never half a block."""
    path = top / f"in-place-{rank}"
    for step in _count(stop):
        with open(path, "r+b" if path.exists() else "wb", buffering=0) as file:
            file.writelines(block(rank, step, index) for index in range(SHARD_BLOCKS))
        if check_whole(path.read_bytes(), f"{path} after its writer closed it") != (rank, step):
            raise AssertionError(f"{path}: closed step {step} cannot be seen")


def overwrite_with_truncate(top: Path, stop: Event, rank: int) -> None:
    """Save over one file with O_TRUNC, as ``torch.save(..., "latest.pt")`` does."""
    path = top / f"truncated-{rank}"
    for step in _count(stop):
        path.write_bytes(shard(rank, step))
        assert check_whole(path.read_bytes(), f"{path} after its writer closed it") == (rank, step)


def read_latest(top: Path, stop: Event, _rank: int) -> None:
    """Whatever ``latest`` is when it is opened is whole, and stays so while it is open."""
    newest: dict[int, int] = {}
    for _ in _count(stop):
        with suppress(FileNotFoundError), open(top / "latest", "rb", buffering=0) as file:
            first = check_whole(_read_all(file.fileno(), 128 << 10), "latest")
            assert check_whole(_read_all(file.fileno(), 8 << 10), "latest, read again") == first
            assert newest.get(first[0], -1) <= first[1], f"latest went back to {first} from step {newest[first[0]]}"
            newest[first[0]] = first[1]


def read_steps(top: Path, stop: Event, _rank: int) -> None:
    """A shard that has its name is whole, or gone."""
    for _ in _count(stop):
        for directory in list(top.glob("rank*-step*")):
            with suppress(FileNotFoundError):
                check_whole((directory / "shard").read_bytes(), f"{directory.name}/shard")


def read_overwritten(top: Path, stop: Event, _rank: int) -> None:
    """Files that are being written: blocks of any step, each whole and in its place, and never zeros between them."""
    for _ in _count(stop):
        for path in [*top.glob("in-place-*"), *top.glob("truncated-*")]:
            data = path.read_bytes()
            check_blocks(data[: len(data) // BLOCK_BYTES * BLOCK_BYTES], path.name)


_rounds = 0
"""How often this process went round its loop."""


def _count(stop: Event) -> Iterator[int]:
    global _rounds  # noqa: PLW0603  # one worker a process
    while not stop.is_set():
        yield _rounds
        _rounds += 1


def _read_all(descriptor: int, piece_bytes: int) -> bytes:
    pieces: list[bytes] = []
    offset = 0
    while piece := os.pread(descriptor, piece_bytes, offset):
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


def _work(work: Callable[[Path, Event, int], None], top: str, stop: Event, rank: int, report: str) -> None:
    try:
        work(Path(top), stop, rank)
        outcome = "done" if _rounds else "it never got round once"
    except BaseException as why:  # noqa: BLE001  # told to the test, which cannot see this process
        outcome = f"{work.__name__} {rank}: {type(why).__name__}: {why}"
        stop.set()
    Path(report).write_text(json.dumps(outcome))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("width", ["auto", "2"])
def test_no_reader_ever_sees_zeros_or_a_mixture_while_others_save_rename_and_delete(
    width: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    rig = Rig(tmp_path, width)
    workers = [
        (save_steps, 0),
        (save_steps, 1),
        (overwrite_in_place, 2),
        (overwrite_with_truncate, 3),
        (read_latest, 4),
        (read_steps, 5),
        (read_overwritten, 6),
        (read_overwritten, 7),
    ]
    try:
        stop = _spawn.Event()
        reports = [tmp_path / f"report{rank}" for _, rank in workers]
        processes = [
            _spawn.Process(target=_work, args=(work, str(rig.volume.mountpoint), stop, rank, str(report)), daemon=True)
            for (work, rank), report in zip(workers, reports, strict=True)
        ]
        for process in processes:
            process.start()
        stop.wait(LONG_RUN_S if pytestconfig.getoption("--hypothesis-profile") == "long" else RUN_S)
        stop.set()
        with rig.watchdog.guard(PATIENCE_S):
            _join(processes, PATIENCE_S)
        outcomes = [json.loads(report.read_text()) if report.exists() else "it never ended" for report in reports]
        assert outcomes == ["done"] * len(workers)
        check_whole((rig.volume.mountpoint / "latest").read_bytes(), "latest at the end")
        rig.remount()
        check_whole((rig.volume.mountpoint / "latest").read_bytes(), "latest after a remount")
        read_steps_once(rig.volume.mountpoint)
        rig.check_log()
    finally:
        rig.dispose()


def read_steps_once(top: Path) -> None:
    """Every step that is there is whole."""
    for directory in top.glob("rank*-step*"):
        if (directory / "shard").exists():
            check_whole((directory / "shard").read_bytes(), directory.name)


def _join(processes: list[SpawnProcess], patience_s: float) -> None:
    deadline_s = time.monotonic() + patience_s
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
            process.join(5)
