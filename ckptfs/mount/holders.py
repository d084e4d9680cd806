"""Which processes keep a mount busy, for people who want to unmount it. Reads ``/proc`` and never the mount itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and one thing below the mountpoint that it has open, mapped, or as its directory."""

    pid: int
    command: str
    path: str


def holders_of(mountpoint: Path) -> list[Holder]:
    """Who holds something below ``mountpoint``, by pid. Processes that this one may not inspect are missing."""
    root = os.fspath(mountpoint)
    found: set[Holder] = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            command = (process / "comm").read_text(errors="replace").strip()
            found |= {Holder(int(process.name), command, path) for path in _held_by(process) if _below(path, root)}
        except OSError:
            continue  # it ended meanwhile, or belongs to someone else
    return sorted(found, key=lambda holder: (holder.pid, holder.path))


def _held_by(process: Path) -> Iterator[str]:
    for link in (process / "cwd", process / "root", *(process / "fd").iterdir()):
        try:
            yield os.readlink(link)
        except OSError:
            continue  # closed meanwhile
    for line in (process / "maps").read_text(errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            yield fields[5]


def _below(path: str, root: str) -> bool:
    return path.removesuffix(" (deleted)") == root or path.startswith(root.rstrip("/") + "/")
