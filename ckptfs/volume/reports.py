"""What the volume tells people about itself: the records behind ``status``, ``info``, ``previous``, ``undelete`` and
``fsck``.

Plain frozen records. The admin messages carry them as they are and the command line prints them, so a field name here
is the name in ``--json`` (docs/cli.md). Sizes are bytes, times are seconds since the epoch. Paths inside the volume
are bytes relative to its root, without a leading slash (``b""`` is the root); paths of the machine are text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class VolumeIdentity:
    """``id`` is from volume.toml, ``dir`` the volume directory, ``version`` of the ckptfs that
    serves it.
    """

    id: str
    dir: str
    version: str


@dataclass(frozen=True, slots=True)
class StripeReport:
    """One stripe: ``free`` is what ckptfs may still use, that is without the reserve."""

    path: str
    total: int
    free: int
    healthy: bool
    problem: str = ""
    """A sentence; empty when healthy."""


@dataclass(frozen=True, slots=True)
class GenerationCounts:
    """Files with a name, by the state of their content; ``torn`` ones are counted there too, ``quarantined`` contents nowhere else."""

    landing: int = 0
    sealed: int = 0
    packed: int = 0
    torn: int = 0
    quarantined: int = 0


@dataclass(frozen=True, slots=True)
class ByteCounts:
    """``raw``: the sizes of all files with a name together; ``stored``: what the images occupy on the stripes, the removal log's
    included.
    """

    raw: int = 0
    stored: int = 0


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Files that programs hold open; ``writing`` counts those open for writing."""

    total: int = 0
    writing: int = 0


@dataclass(frozen=True, slots=True)
class VolumeStatus:
    """What ``ckptfs status`` shows of a volume, all but the daemon that serves it."""

    volume: VolumeIdentity
    stripes: list[StripeReport]
    generations: GenerationCounts
    bytes: ByteCounts
    open_files: OpenFiles


@dataclass(frozen=True, slots=True)
class LaneReport:
    """One lane of an image: the file and how many bytes it holds; a lane never written has no file yet and holds
    none.
    """

    stripe: int
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What ``ckptfs info`` shows of a regular file.

    ``generation`` is the number of its current content, ``state`` one of landing, sealed, packed; ``chunks`` how many
    chunks it has and ``present`` how many of them are in its image; ``width`` how many stripes they lie over.
    """

    path: bytes
    size: int
    generation: int
    state: str
    width: int
    chunk_size: int
    chunks: int
    present: int
    torn: bool
    lanes: list[LaneReport] = field(default_factory=list[LaneReport])


@dataclass(frozen=True, slots=True)
class PreviousVersion:
    """A content that a name had before, still in the removal log; ``kind`` (``RemovalKind``) is how the name lost it."""

    generation: int
    size: int
    state: str
    kind: str
    removed_s: float
    expires_s: float | None
    """When space pressure aside it is dropped; None while it is held, that is until everything landing is sealed."""


@dataclass(frozen=True, slots=True)
class RemovedName:
    """A removed name that ``undelete`` can bring back, with all that was below it when it is a directory."""

    path: bytes
    size: int
    is_directory: bool
    kind: str
    removed_s: float
    expires_s: float | None
    """As :attr:`PreviousVersion.expires_s`."""


class FsckMode(StrEnum):
    """What ``ckptfs fsck`` may do about what it finds."""

    CHECK = "check"
    """Nothing: read only."""
    REPAIR = "repair"
    """Repair inconsistencies as docs/crash-consistency.md lists them; nothing is thrown away."""
    RESTORE = "restore"
    """Put the quarantined contents back under free names."""
    DISCARD = "discard"
    """Free what is in quarantine."""


@dataclass(frozen=True, slots=True)
class Damage:
    """``kind`` is a row of the table in docs/crash-consistency.md, ``detail`` a sentence,
    ``path`` if a name is hit.
    """

    kind: str
    detail: str
    path: bytes | None = None
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class QuarantinedFile:
    """A content that recovery did not trust; ``path`` is where it was found."""

    generation: int
    path: bytes
    size: int
    reason: str
    quarantined_s: float


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What a check found and did. ``quarantine`` lists what is in quarantine at the end."""

    inodes_checked: int
    generations_checked: int
    lanes_checked: int
    damage: list[Damage]
    quarantine: list[QuarantinedFile]
    restored: list[bytes] = field(default_factory=list[bytes])
    """Paths that mode RESTORE gave quarantined contents."""
    discarded: int = 0
    """How many quarantined contents mode DISCARD freed."""
