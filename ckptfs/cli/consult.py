"""Asking a volume whatever serves it: through the control socket while it is mounted, by opening it otherwise."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pathlib import Path

    from ckptfs.admin.locate import Location
    from ckptfs.admin.messages import Reply, Request

T = TypeVar("T")


def consult(location: Location, request: Request, expected: type[T], *, changes: bool = False) -> T:
    """The reply to ``request``, which must be an ``expected``. ``changes``: the request changes the volume.

    Raises what the volume raises, with or without a daemon in between.
    """
    from ckptfs.admin.client import ask

    if location.is_served:
        return ask(location.directory, request, expected)
    reply = _ask_directly(location.directory, request, changes=changes)
    assert isinstance(reply, expected), reply
    return reply


def _ask_directly(directory: Path, request: Request, *, changes: bool) -> Reply:
    import trio

    return trio.run(partial(_open_and_answer, directory, request, read_only=not changes))


async def _open_and_answer(directory: Path, request: Request, *, read_only: bool) -> Reply:
    from ckptfs.admin.answers import answer
    from ckptfs.volume.volume import open_volume

    async with open_volume(directory, read_only=read_only) as volume:
        return await answer(volume, request, None)
