"""What the kernel says is mounted: ckptfs mounts, their volumes and devices, from ``/proc/self/mountinfo``.

A mount's source is ``ckptfs#<volume directory>``, so the volume of a path is found without a daemon's help, also when
the daemon is dead. Reading the table never touches a mount, so it cannot hang on one.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote_to_bytes

FILESYSTEM_TYPE = "fuse.ckptfs"
_PREFIX = "ckptfs#"
_PLAIN = "/!$&'()*+-.:;=?@[]^_`{|}~<>"
"""What stays as it is in a source, with letters and digits. The rest, and ``,`` which ends a mount option, is written
%XX.
"""


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One ckptfs mount. ``volume_directory`` is ``None`` where the ``fsname`` option replaced the source."""

    mountpoint: Path
    volume_directory: Path | None
    device_major: int
    device_minor: int


def source_of(volume_directory: Path) -> str:
    """``ckptfs#/the/volume``: ASCII and free of commas, as a mount option must be."""
    return _PREFIX + quote(os.fsencode(volume_directory), safe=_PLAIN)


def ckptfs_mounts() -> list[MountEntry]:
    """Every ckptfs mount that this process can see, oldest first."""
    found: list[MountEntry] = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields, _, described = line.partition(b" - ")
        kind, source = described.split(b" ")[:2]
        if kind != FILESYSTEM_TYPE.encode():
            continue
        _, _, device, _, mountpoint = fields.split(b" ")[:5]
        major, _, minor = device.partition(b":")
        name = os.fsdecode(_unescape(source))
        directory = Path(os.fsdecode(unquote_to_bytes(name[len(_PREFIX) :]))) if name.startswith(_PREFIX) else None
        found.append(MountEntry(Path(os.fsdecode(_unescape(mountpoint))), directory, int(major), int(minor)))
    return found


def mount_at(mountpoint: Path) -> MountEntry | None:
    """The ckptfs mount on exactly this absolute path, the topmost if there are several; ``None`` if there is none."""
    return next((entry for entry in reversed(ckptfs_mounts()) if entry.mountpoint == mountpoint), None)


def mount_holding(path: Path) -> MountEntry | None:
    """The ckptfs mount that an absolute path without symlinks lies in, or is the mountpoint of; ``None`` if none."""
    holding = [entry for entry in ckptfs_mounts() if path.is_relative_to(entry.mountpoint)]
    return max(reversed(holding), key=lambda entry: len(entry.mountpoint.parts), default=None)


def _unescape(text: bytes) -> bytes:
    """The kernel writes space, tab, newline and backslash as three octal digits."""
    return re.sub(rb"\\([0-7]{3})", lambda digits: bytes([int(digits[1], 8)]), text)
