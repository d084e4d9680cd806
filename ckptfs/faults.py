"""Named places where a test can make ckptfs fail.

``CKPTFS_FAULT=point[:n][=action][,...]`` arms points when ``CKPTFS_TESTING=1``; otherwise it is refused, so that a stray
variable cannot hurt a production mount. *n* is the hit that triggers (1, the first, by default). Actions:

``exit``
    end the process at once, as SIGKILL would (the default);
``EIO``, ``ENOSPC``, any errno name
    raise that ``OSError``, at hit *n* and at every later one;
``delay:SECONDS``
    block the calling thread, at hit *n* and at every later one;
``limit:BYTES``
    let through at most that many bytes a second, for each *lane* given to :func:`pass_bytes` on its own
    (only points that move bytes).

A point costs one dictionary look-up when nothing is armed. Every point is declared in :data:`POINTS`, so
``ckptfs doctor --faults`` can list them and a misspelt name is an error.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from dataclasses import dataclass, field

from ckptfs.errors import ConfigError
from ckptfs.units import parse_size

POINTS: dict[str, str] = {
    "lane.write": "before bytes are written to a lane (moves bytes)",
    "lane.read": "before bytes are read from a lane (moves bytes)",
    "lane.reserve": "before space is reserved in a lane",
    "lane.fsync": "before a lane is flushed to its device",
    "landing.accepted": "a write was taken into memory, no byte is in a lane yet",
    "landing.dirty-marked": "the dirty mark is committed, no byte is in a lane yet",
    "landing.flushed": "FLUSH: bytes are in the image, the flushed mark is not committed",
    "landing.flush-committed": "FLUSH: the flushed mark is committed",
    "image.created": "the image row is committed, no lane exists",
    "generation.replaced": "O_TRUNC: the new generation is committed",
    "seal.begin": "a seal was decided on, nothing is flushed",
    "seal.lanes-flushed": "seal: lanes are on disk, the metadata is not committed",
    "seal.committed": "seal: the metadata is committed, no barrier yet",
    "barrier.before": "before the write-ahead log is flushed",
    "barrier.after": "after the write-ahead log is flushed",
    "names.committed": "a name change (create, rename, unlink, ...) is committed, the caller does not know",
    "reclaim.dropping": "freeing: the image row says dropping, no barrier yet",
    "reclaim.barrier": "freeing: after the barrier, lanes still there",
    "reclaim.lanes-gone": "freeing: lanes unlinked, image row still there",
    "recovery.before-commit": "recovery: everything decided, nothing committed",
    "recovery.committed": "recovery: committed, not flushed",
    "unmount.sealed": "unmounting: everything sealed, the clean mark is not committed",
}
"""Every fault point and what has, and has not, happened when it is reached."""


@dataclass
class _Armed:
    hit: int
    action: str
    argument: float
    hits: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    next_free_s: dict[str, float] = field(default_factory=dict[str, float])


_armed: dict[str, _Armed] = {}


def arm(spec: str) -> None:
    """Arm the points of ``spec`` (see the module docstring), replacing what was armed; an empty one disarms all.

    Raises :class:`ConfigError` for an unknown point or action.
    """
    armed: dict[str, _Armed] = {}
    for part in filter(None, (p.strip() for p in spec.split(","))):
        where, _, action = part.partition("=")
        point, _, hit = where.partition(":")
        if point not in POINTS:
            raise ConfigError(f"no fault point {point!r}; there are: {', '.join(sorted(POINTS))}")
        kind, _, argument = (action or "exit").partition(":")
        try:
            value = float(parse_size(argument)) if kind == "limit" else float(argument or 0)
            armed[point] = _Armed(int(hit or 1), kind, value)
        except ValueError as why:
            raise ConfigError(f"fault {part!r}: {why}") from None
        if kind not in ("exit", "delay", "limit") and not hasattr(errno, kind):
            raise ConfigError(
                f"fault {part!r}: unknown action {kind!r}; use exit, delay:S, limit:BYTES or an errno name"
            )
    _armed.clear()
    _armed.update(armed)


def arm_from_environment() -> None:
    """Arm what ``CKPTFS_FAULT`` asks for. Raises :class:`ConfigError` when ``CKPTFS_TESTING`` is not 1."""
    spec = os.environ.get("CKPTFS_FAULT", "")
    if spec and os.environ.get("CKPTFS_TESTING") != "1":
        raise ConfigError("CKPTFS_FAULT is set, which is for tests only: unset it, or set CKPTFS_TESTING=1")
    arm(spec)


def hit(point: str) -> None:
    """Declare that ``point`` is reached; does what a test armed there, mostly nothing. May block, raise, or not return."""
    if not _armed:
        return
    armed = _armed.get(point)
    if armed is None or armed.action == "limit":
        return
    with armed.lock:
        armed.hits += 1
        due = armed.hits >= armed.hit
    if not due:
        return
    if armed.action == "exit":
        os._exit(137)
    if armed.action == "delay":
        time.sleep(armed.argument)
        return
    number = int(getattr(errno, armed.action))
    raise OSError(number, f"{os.strerror(number)} (fault point {point})")


def is_limited(point: str) -> bool:
    """Whether a rate limit is armed at ``point``: then no byte may go round it."""
    armed = _armed.get(point)
    return armed is not None and armed.action == "limit"


def pass_bytes(point: str, lane: str, count: int) -> None:
    """As :func:`hit`, for ``count`` bytes about to move on ``lane``; blocks as an armed rate limit asks."""
    if not _armed:
        return
    armed = _armed.get(point)
    if armed is None:
        return
    if armed.action != "limit":
        hit(point)
        return
    with armed.lock:
        now = time.monotonic()
        start = max(now, armed.next_free_s.get(lane, now))
        armed.next_free_s[lane] = start + count / armed.argument
        wait_s = start + count / armed.argument - now
    time.sleep(wait_s)
