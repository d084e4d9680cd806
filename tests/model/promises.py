"""What a killed daemon may leave of one file: the tables of docs/crash-consistency.md, for the same instance.

- A file that was closed, fsynced or renamed after its last change stands as it was.
- Any other is torn. Of the bytes accepted since, each may or may not have reached its lane, so each byte holds what it
  held at some moment since; the size is that of some moment since, or lies between two.
- A torn file whose content was started anew with O_TRUNC may have a predecessor back instead, until an fsync makes the
  replacement final.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Promise:
    """The contents that one file may have after a kill."""

    states: list[bytes]
    """Its contents since it was last finished, oldest first; the first is the finished one."""
    torn: bool = False
    predecessors: list[bytes] = field(default_factory=list[bytes])

    def changed(self, content: bytes) -> None:
        """A write or truncate was answered."""
        self.states.append(content)
        self.torn = True

    def started_anew(self) -> None:
        """O_TRUNC, or a truncate to nothing: a new generation, if nobody else is at the file."""
        self.predecessors.append(self.states[-1])
        self.states = [*self.states, b""] if self.torn else [b""]
        self.torn = True

    def finished(self) -> None:
        """A FLUSH was answered."""
        self.states = [self.states[-1]]
        self.torn = False

    def synced(self) -> None:
        """An fsync was answered. Of a file that is empty it says nothing of the content, which is yet to come."""
        if self.states[-1]:
            self.finished()
            self.predecessors.clear()

    def sealed_for_good(self) -> None:
        """It was closed, and the volume was unmounted."""
        self.finished()
        self.predecessors.clear()

    def recovered_as(self, content: bytes) -> None:
        """This is what the kill left. What it could have left may still come back in the next crash."""
        self.states = [content]
        self.torn = False

    def allows(self, content: bytes) -> bool:
        """Whether a kill may leave this."""
        if content == self.states[-1]:
            return True
        if not self.torn:
            return False
        return content in self.predecessors or self._is_mixture(content)

    def _is_mixture(self, content: bytes) -> bool:
        sizes = [len(state) for state in self.states]
        if not min(sizes) <= len(content) <= max(sizes):
            return False
        found = np.frombuffer(content, np.uint8)
        explained = np.zeros(len(content), np.bool_)
        for state in self.states:
            held = np.zeros(len(content), np.uint8)
            part = np.frombuffer(state[: len(content)], np.uint8)
            held[: len(part)] = part
            explained |= held == found
        return bool(explained.all())
