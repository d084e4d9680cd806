"""Stripe directories: making one, telling whether it is the right one, and how much space it has.

Each stripe carries ``ckptfs-stripe.json``, which says which volume it belongs to and as which stripe. A mount
compares it with volume.toml before anything is read or written, because the mistakes it finds are ordinary and
ruinous: a device that did not come up leaves an empty directory; two devices come up under each other's names; a
directory is taken over from another volume.

Space is what the filesystem says is available to this process, less a reserve that stays free for others on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ckptfs.config import StripeSection, VolumeConfig
from ckptfs.errors import NewerSchema, StripeMismatch
from ckptfs.image.files import IMAGES_DIRECTORY
from ckptfs.volume.reports import StripeReport

IDENTITY_NAME = "ckptfs-stripe.json"
FORMAT_VERSION = 1

_RESERVE_SHARE = 0.02
_MIN_RESERVE_BYTES = 16 << 20
_MAX_RESERVE_BYTES = 4 << 30


class StripeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the identity file. ``index`` is the stripe's number in the volume, from 0."""

    format: int
    volume: str
    stripe: str
    index: int


@dataclass(frozen=True, slots=True)
class StripeSpace:
    """Bytes: ``total`` of the filesystem, ``available`` to ckptfs, that is without the reserve."""

    total: int
    available: int


class Stripe:
    """One stripe of a mounted volume: where it is, how much room it has, and whether its device still answers.

    Whoever meets a device error on it says so with :meth:`note_problem`; it is shown by ``ckptfs status`` until the
    next mount.
    """

    def __init__(self, index: int, path: Path, reserve_bytes: int) -> None:
        self.index = index
        self.path = path
        self.reserve_bytes = reserve_bytes
        self._problem = ""

    def space(self, *, from_reserve_bytes: int = 0) -> StripeSpace:
        """The room on it now, above the reserve but for ``from_reserve_bytes`` of it.

        Raises ``OSError`` when its filesystem does not answer.
        """
        now = os.statvfs(self.path)
        available = now.f_bavail * now.f_frsize - self.reserve_bytes + from_reserve_bytes
        return StripeSpace(total=now.f_blocks * now.f_frsize, available=max(0, available))

    def note_problem(self, problem: OSError | str) -> None:
        """Remember that something on it failed; the first problem is kept, for what follows is mostly its
        consequence.
        """
        if not self._problem:
            self._problem = str(problem)

    def report(self) -> StripeReport:
        """Where it is, its room and its health, as ``ckptfs status`` shows it; never raises."""
        try:
            space = self.space()
        except OSError as why:
            self.note_problem(why)
            space = StripeSpace(0, 0)
        return StripeReport(
            path=str(self.path),
            total=space.total,
            free=space.available,
            healthy=not self._problem,
            problem=self._problem,
        )


def default_reserve(total_bytes: int) -> int:
    """Bytes to leave free on a stripe of that size: 2 %, at least 16 MiB and at most 4 GiB."""
    return min(max(int(total_bytes * _RESERVE_SHARE), _MIN_RESERVE_BYTES), _MAX_RESERVE_BYTES)


def space_of_all(stripes: Iterable[Stripe]) -> StripeSpace:
    """The room on all stripes together; stripes that share a filesystem are counted once. Raises ``OSError`` as
    :meth:`Stripe.space`.
    """
    by_filesystem: dict[int, StripeSpace] = {}
    for stripe in stripes:
        device = os.stat(stripe.path).st_dev
        space = stripe.space()
        seen = by_filesystem.get(device)
        if seen is None or space.available < seen.available:
            by_filesystem[device] = space
    return StripeSpace(
        total=sum(space.total for space in by_filesystem.values()),
        available=sum(space.available for space in by_filesystem.values()),
    )


def open_stripes(config: VolumeConfig) -> list[Stripe]:
    """The stripes of a volume, after checking that each is there and is the one it should be.

    Raises :class:`StripeMismatch`, saying which path, what is there instead and what to do.
    """
    identities = [_read_identity(section.path, _named(index, section)) for index, section in enumerate(config.stripes)]
    where_is = {identity.stripe: section.path for identity, section in zip(identities, config.stripes, strict=True)}
    for index, (section, identity) in enumerate(zip(config.stripes, identities, strict=True)):
        _check_identity(config, index, identity, where_is.get(section.id))
        if not (section.path / IMAGES_DIRECTORY).is_dir():
            raise StripeMismatch(
                f"{_named(index, section)} has no {IMAGES_DIRECTORY}/ directory, so its data is gone or was moved away. "
                "Put it back; an empty one will do if the data is lost, and ckptfs fsck then says what is missing"
            )
    return [Stripe(index, section.path, _reserve_of(section)) for index, section in enumerate(config.stripes)]


def format_stripe(path: Path, volume_id: str, stripe_id: str, index: int) -> None:
    """Make ``path``, an existing directory, stripe number ``index`` of a volume; it is on disk when this returns."""
    (path / IMAGES_DIRECTORY).mkdir(mode=0o700, exist_ok=True)
    identity = StripeIdentity(format=FORMAT_VERSION, volume=volume_id, stripe=stripe_id, index=index)
    write_durably(path / IDENTITY_NAME, msgspec.json.format(msgspec.json.encode(identity), indent=2) + b"\n")


def refuse_taken_directory(path: Path) -> None:
    """Raise :class:`StripeMismatch` when ``path`` cannot become a new stripe because it is one, or looks like one."""
    if (path / IDENTITY_NAME).exists():
        identity = _read_identity(path, str(path))
        raise StripeMismatch(
            f"{path} already is stripe {identity.index} of volume {identity.volume}. Choose another directory, or "
            f"delete {path / IDENTITY_NAME} and {path / IMAGES_DIRECTORY} if that volume is no longer needed"
        )
    images = path / IMAGES_DIRECTORY
    if os.path.lexists(images) and not (images.is_dir() and not any(images.iterdir())):
        raise StripeMismatch(
            f"{path} cannot become a stripe: it already holds {IMAGES_DIRECTORY!r}. Choose another directory"
        )


def write_durably(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path`` so that it is there whole, or not at all, after a loss of power."""
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush the names in a directory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _named(index: int, section: StripeSection) -> str:
    return f"stripe {index} ({section.path})"


def _reserve_of(section: StripeSection) -> int:
    if section.reserve_bytes is not None:
        return section.reserve_bytes
    filesystem = os.statvfs(section.path)
    return default_reserve(filesystem.f_blocks * filesystem.f_frsize)


def _read_identity(path: Path, name: str) -> StripeIdentity:
    file = path / IDENTITY_NAME
    try:
        identity = msgspec.json.decode(file.read_bytes(), type=StripeIdentity)
    except (FileNotFoundError, NotADirectoryError):
        if not path.is_dir():
            what = "is not a directory" if os.path.lexists(path) else "does not exist"
            raise StripeMismatch(f"{name} is missing: the path {what}. Is its device mounted?") from None
        found = "the directory is empty" if not any(path.iterdir()) else f"the directory has no {IDENTITY_NAME}"
        raise StripeMismatch(
            f"{name} is missing: {found}. Mount the device that belongs there, or correct the path in volume.toml"
        ) from None
    except msgspec.MsgspecError as why:
        raise StripeMismatch(
            f"{name} cannot be identified: {file} is damaged ({why}). Write it anew, as the ones of the other stripes: "
            "the ids of volume and stripe are in volume.toml"
        ) from None
    except OSError as why:
        raise StripeMismatch(
            f"{name} cannot be read: {why}. Is its device healthy, and may this user read it?"
        ) from None
    if identity.format > FORMAT_VERSION:
        raise NewerSchema(
            f"{name} has format {identity.format}; this ckptfs knows up to {FORMAT_VERSION}. "
            "Use the version of ckptfs that made it, or a later one"
        )
    return identity


def _check_identity(config: VolumeConfig, index: int, identity: StripeIdentity, right_path: Path | None) -> None:
    section = config.stripes[index]
    name = _named(index, section)
    if identity.volume != config.volume.id:
        raise StripeMismatch(
            f"{name} is foreign: there is stripe {identity.index} of volume {identity.volume}, and this is volume "
            f"{config.volume.id}. Mount the right device there, or correct the path in volume.toml"
        )
    if identity.stripe != section.id:
        where = f"; the one that belongs there is at {right_path}" if right_path is not None else ""
        raise StripeMismatch(
            f"{name} is swapped: what is there is stripe {identity.index} of this volume{where}. "
            "Mount the devices where they belong, or correct the paths in volume.toml"
        )
    if identity.index != index:
        raise StripeMismatch(
            f"{name} is out of order: it is stripe {identity.index} of this volume. "
            "Put the [[stripe]] sections of volume.toml back in their order"
        )
