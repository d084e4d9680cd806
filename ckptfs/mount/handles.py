"""File handle numbers, and what is open under them.

The kernel names an open file or directory by a number that the daemon chose. A table gives numbers out and never the
same one twice, so a late request for a released handle is an error and never another file.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from ckptfs.mount.contract import ServedFile

_MOST_ENTRIES = 512
"""More than the kernel takes at once from a getdents buffer of 32 KiB, glibc's, at any name length."""


class SyncOnWrite(Enum):
    """What must be on the device before a write is answered."""

    NOTHING = "nothing"
    DATA = "data"
    ALL = "all"

    @staticmethod
    def asked_by(flags: int) -> SyncOnWrite:
        """What the flags of ``open(2)`` ask for; the bits of ``O_SYNC`` include that of ``O_DSYNC``."""
        if flags & os.O_SYNC == os.O_SYNC:
            return SyncOnWrite.ALL
        return SyncOnWrite.DATA if flags & os.O_DSYNC else SyncOnWrite.NOTHING


@dataclass(frozen=True, slots=True)
class OpenHandle:
    """An open file and what its flags ask of every write."""

    file: ServedFile
    sync_on_write: SyncOnWrite

    @property
    def ino(self) -> int:
        return self.file.ino


@dataclass(slots=True)
class DirectoryStream:
    """An open directory. Keeps no entries between requests, since their attributes would be stale when the kernel takes
    them; only how many entries the kernel takes at a time (23 from 4 KiB, some 190 from 32 KiB), which is what to ask
    for.
    """

    ino: int
    page_entries: int = 64

    def learn(self, taken: int, offered: int) -> None:
        """The kernel took ``taken`` of ``offered`` entries: ask for more next time if it took all, else for as many."""
        self.page_entries = min(2 * self.page_entries, _MOST_ENTRIES) if taken == offered else taken + 1


_Open = TypeVar("_Open")


class HandleTable(Generic[_Open]):
    """Handle number → what is open under it."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, _Open] = {}

    def add(self, opened: _Open) -> int:
        number = next(self._numbers)
        self._open[number] = opened
        return number

    def __getitem__(self, number: int) -> _Open:
        return self._open[number]

    def get(self, number: int) -> _Open | None:
        return self._open.get(number)

    def remove(self, number: int) -> _Open:
        return self._open.pop(number)

    def __len__(self) -> int:
        return len(self._open)
