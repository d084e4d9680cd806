"""An open volume on temporary directories, without a mount, and gates that hold its blocking calls where a test wants them."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from ckptfs.config import Width
from ckptfs.errors import NameNotFound
from ckptfs.meta import generations
from ckptfs.meta.generations import GenerationRow
from ckptfs.meta.schema import ROOT_INO
from ckptfs.volume.attributes import Caller
from ckptfs.volume.format import format_volume
from ckptfs.volume.handles import OpenFile
from ckptfs.volume.live import LiveFile
from ckptfs.volume.seal import Sealer
from ckptfs.volume.volume import Volume, open_volume

CHUNK_BYTES = 64 << 10
CALLER = Caller(0, 0)
PATIENCE_S = 15


_gates: list[Gate] = []


class Gate:
    """Holds every call of ``owner.name`` that comes in a thread, until it is opened or the caller is cancelled.

    ``only`` picks calls by their arguments.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        owner: object,
        name: str,
        *,
        only: Callable[..., bool] = lambda *_args, **_kwargs: True,
    ) -> None:
        self._reached = trio.Event()
        self._open = threading.Event()
        _gates.append(self)
        original = getattr(owner, name)

        def held(*args: Any, **kwargs: Any) -> Any:
            if not self._open.is_set() and only(*args, **kwargs):
                trio.from_thread.run_sync(self._reached.set)
                while not self._open.wait(0.01):
                    trio.from_thread.check_cancelled()
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, held)

    async def wait_reached(self) -> None:
        """Wait until a call stands at the gate."""
        with trio.fail_after(PATIENCE_S):
            await self._reached.wait()

    def open(self) -> None:
        """Let everybody through, from now on."""
        self._open.set()


class Background:
    """A call that runs beside the test."""

    def __init__(self, nursery: trio.Nursery, call: Callable[..., Any], *args: Any) -> None:
        self.result: Any = None
        self.failure: BaseException | None = None
        self._done = trio.Event()
        self._call, self._args = call, args
        nursery.start_soon(self._run)

    @property
    def done(self) -> bool:
        return self._done.is_set()

    async def wait(self) -> Any:
        """What it returns, or raises."""
        with trio.fail_after(PATIENCE_S):
            await self._done.wait()
        if self.failure is not None:
            raise self.failure
        return self.result

    async def _run(self) -> None:
        try:
            self.result = await self._call(*self._args)
        except Exception as why:  # noqa: BLE001  # handed to the test
            self.failure = why
        self._done.set()


def make(base: Path, *, stripes: int = 2, width: Width = "auto", reserve_bytes: int = 0) -> Path:
    """Format a volume; returns its directory."""
    directory = base / "volume"
    paths = [base / f"stripe{number}" for number in range(stripes)]
    format_volume(directory, paths, chunk_size=CHUNK_BYTES, width=width, reserve_bytes=reserve_bytes)
    return directory


@asynccontextmanager
async def opened(
    directory: Path, monkeypatch: pytest.MonkeyPatch | None = None, *, clean: bool = True
) -> AsyncGenerator[Volume, None]:
    """Open it. With ``monkeypatch`` nothing is sealed in the background. Leaving must find it clean, unless told otherwise."""
    if monkeypatch is not None:
        monkeypatch.setattr(Sealer, "run", _never)
    async with open_volume(directory) as volume:
        try:
            with trio.fail_after(PATIENCE_S):
                yield volume
        finally:
            while _gates:
                _gates.pop().open()
    if clean:
        assert not volume.landing.unsealed()


async def _never(_sealer: Sealer) -> None:
    await trio.sleep_forever()


async def until(condition: Callable[[], bool]) -> None:
    """Return once the condition, which threads bring about, is true."""
    while not condition():  # noqa: ASYNC110  # threads set no event
        await trio.sleep(0.001)


async def open_file(volume: Volume, name: str, flags: int = os.O_RDWR) -> OpenFile:
    """Open, or create, a file in the root."""
    encoded = name.encode()
    try:
        found = await volume.lookup(ROOT_INO, encoded)
    except NameNotFound:
        opened_file, made = await volume.create(ROOT_INO, encoded, 0o644, flags, CALLER)
        volume.forget(made.ino, 1)
        return opened_file
    volume.forget(found.ino, 1)
    return await volume.open(found.ino, flags)


async def close(file: OpenFile) -> None:
    """What the kernel does for close(2)."""
    await file.flush()
    await file.release()


async def save(volume: Volume, name: str, data: bytes) -> int:
    """Open with O_TRUNC, write, close; returns the inode."""
    file = await open_file(volume, name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    await file.write(0, data)
    await close(file)
    return file.ino


async def content(volume: Volume, name: str) -> bytes:
    """All of a file."""
    file = await open_file(volume, name, os.O_RDONLY)
    try:
        return bytes(await file.read(0, 1 << 30))
    finally:
        await file.release()


async def generation(volume: Volume, ino: int) -> GenerationRow:
    """What the database says of the current generation."""
    row = await volume.transact(generations.current, ino)
    assert row is not None
    return row


def live(volume: Volume, ino: int) -> LiveFile:
    """The live file, which must be there."""
    found = volume.landing.find(ino)
    assert found is not None
    return found
