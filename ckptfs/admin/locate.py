"""From a path that a user gives to the volume it means.

A path means a volume when it lies in a mount, or when it is a volume directory, or lies below one:
``/volume/run/latest.pt`` names the file ``run/latest.pt`` of the volume in ``/volume``, which is how files are named
while nothing is mounted. Mounts are looked for first, in the kernel's table and not by touching them, so this works
on a dead mount and never hangs on one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ckptfs.config import CONFIG_NAME
from ckptfs.errors import NotAVolume
from ckptfs.mount.table import mount_holding
from ckptfs.volume.lock import read_holder


@dataclass(frozen=True, slots=True)
class Location:
    """A volume directory and a path in the volume, relative to its root; ``b""`` is the root."""

    directory: Path
    path: bytes

    @property
    def is_served(self) -> bool:
        """Whether a daemon serves the volume now."""
        holder = read_holder(self.directory)
        return holder is not None and bool(holder.mountpoint)


def locate(path: Path) -> Location:
    """The volume, and the path in it, that ``path`` means; the path in it need not exist.

    Raises :class:`NotAVolume`, and PermissionError for a directory that this user may not look into.
    """
    resolved = Path(os.path.realpath(path))
    mount = mount_holding(resolved)
    if mount is not None:
        if mount.volume_directory is None:
            raise NotAVolume(
                f"{path} is in a ckptfs mount whose volume is not known: it was mounted with the option fsname. "
                "Give the volume directory instead"
            )
        return Location(mount.volume_directory, _relative(resolved, mount.mountpoint))
    for candidate in (resolved, *resolved.parents):
        if os.path.isfile(candidate / CONFIG_NAME):
            return Location(candidate, _relative(resolved, candidate))
    if os.path.isdir(resolved):
        os.listdir(resolved)  # says so when this user may not look whether it is a volume
    raise NotAVolume(f"{path} is neither in a mounted ckptfs volume nor a volume directory. Is the volume mounted?")


def _relative(path: Path, base: Path) -> bytes:
    relative = path.relative_to(base)
    return b"" if relative == Path() else os.fsencode(relative)
