"""A real mount over the volume in memory: the kernel is the tests' client, from threads, never from the loop's own."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import pytest
import trio

from ckptfs.mount.options import MountOptions
from ckptfs.mount.session import Session, serve_volume
from tests.unit.mount.fake_volume import FakeVolume

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

P = ParamSpec("P")
T = TypeVar("T")

_PATIENCE_S = 60


class Mounted:
    """A served mount, its volume, and how to use it without blocking the loop that serves it."""

    def __init__(self, path: Path, options: MountOptions) -> None:
        self.path = path
        self.options = options
        self.volume = FakeVolume()
        self.session: Session | None = None
        self.ended = trio.Event()

    async def serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        await serve_volume(
            self.volume,
            self.path.parent / "volume, é",
            self.path,
            self.options,
            ready=task_status.started,
            services=[self._see_session],
        )
        self.ended.set()

    async def _see_session(self, session: Session, *, task_status: trio.TaskStatus[None]) -> None:
        self.session = session
        task_status.started()
        await trio.sleep_forever()

    async def do(self, call: Callable[Concatenate[P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Make a blocking call in a thread; a call that the mount never answers fails the test."""
        with trio.fail_after(_PATIENCE_S):
            return await trio.to_thread.run_sync(partial(call, *args, **kwargs), abandon_on_cancel=True)


@pytest.fixture
def options() -> MountOptions:
    return MountOptions()


@pytest.fixture
async def mounted(tmp_path: Path, options: MountOptions) -> AsyncIterator[Mounted]:
    path = tmp_path / "mountpoint"
    path.mkdir()
    mount = Mounted(path, options)
    async with trio.open_nursery() as nursery:
        await nursery.start(mount.serve)
        try:
            yield mount
        finally:
            with trio.CancelScope(shield=True), trio.fail_after(_PATIENCE_S):
                assert mount.session is not None
                await mount.session.request_unmount(lazily=True)
                await mount.ended.wait()
