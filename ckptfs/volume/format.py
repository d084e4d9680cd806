"""Making a volume: ``mkfs``.

The stripes come first, then the metadata, and ``volume.toml`` last: a directory is a volume from the moment that file
is there, so an interrupted ``mkfs`` leaves something that no mount takes for one. Everything is checked before the
first thing is made.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from ckptfs.config import (
    CONFIG_NAME,
    DEFAULT_CHUNK_BYTES,
    StripeSection,
    VolumeConfig,
    VolumeSection,
    Width,
    check_chunk_size,
    check_width,
    render_default,
)
from ckptfs.errors import ConfigError, DamagedData, RefusedError
from ckptfs.meta.database import Database
from ckptfs.volume.stripes import format_stripe, refuse_taken_directory, sync_directory, write_durably

METADATA_NAME = "metadata.db"
DEFAULT_STRIPE = "stripe0"

_HARMLESS = {"lost+found"}
"""What a fresh filesystem holds by itself."""


def format_volume(
    directory: Path,
    stripes: Sequence[Path] = (),
    *,
    chunk_size: int = DEFAULT_CHUNK_BYTES,
    width: Width = "auto",
    reserve_bytes: int | None = None,
) -> VolumeConfig:
    """Make a volume in ``directory`` over the ``stripes``, by default the one directory ``stripe0`` in it; durable on
    return.

    Directories that do not exist are made, but a stripe's parent must exist: it is where its device is mounted.
    ``reserve_bytes`` holds for each stripe. Raises :class:`RefusedError` when one of them is taken,
    :class:`ConfigError` for values out of range.
    """
    directory = directory.resolve()
    paths = [path.resolve() for path in stripes] or [directory / DEFAULT_STRIPE]
    check_chunk_size(chunk_size)
    check_width(width, len(paths))
    _refuse_text_that_toml_cannot_hold([directory, *paths])
    refuse_taken_volume_directory(directory)
    _refuse_nested(paths)
    for path in paths:
        _refuse_unusable_stripe(path, directory)
    config = VolumeConfig(
        volume=VolumeSection(id=str(uuid.uuid4()), chunk_size=chunk_size, width=width),
        stripes=tuple(StripeSection(path, str(uuid.uuid4()), reserve_bytes) for path in paths),
    )
    if not directory.exists():
        directory.mkdir(mode=0o700, parents=True)
        sync_directory(directory.parent)
    for index, stripe in enumerate(config.stripes):
        stripe.path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(stripe.path.parent)
        format_stripe(stripe.path, config.volume.id, stripe.id, index)
    Database.open(directory / METADATA_NAME).close()
    write_durably(directory / CONFIG_NAME, render_default(config, directory).encode())
    return config


def is_unformatted(directory: Path) -> bool:
    """Whether ``directory`` is missing or empty, so that a volume may be made there without asking."""
    if not os.path.lexists(directory):
        return True
    return directory.is_dir() and not set(os.listdir(directory)) - _HARMLESS


def refuse_missing_metadata(directory: Path) -> None:
    """Raise :class:`DamagedData` when the volume in ``directory`` has lost its database.

    Opening would make an empty one, and new files would then overwrite the lanes of those that only the lost one names.
    """
    path = directory / METADATA_NAME
    if not path.exists() or not path.stat().st_size:
        what = "is empty" if path.exists() else "is missing"
        raise DamagedData(f"the metadata database {path} {what}. Put it back, from where it was moved or from a copy")


def refuse_taken_volume_directory(directory: Path) -> None:
    """Raise :class:`RefusedError` unless a volume may be made in ``directory``."""
    if (directory / CONFIG_NAME).exists():
        raise RefusedError(f"{directory} already is a ckptfs volume. Mount it, or choose another directory")
    if os.path.lexists(directory) and not directory.is_dir():
        raise RefusedError(f"{directory} is not a directory. Choose another one for the volume")
    if is_unformatted(directory):
        return
    if (directory / METADATA_NAME).exists():
        raise RefusedError(
            f"{directory} holds what an interrupted mkfs left, or a volume that lost its {CONFIG_NAME}. "
            "Put that file back, or delete what is in the directory and try again"
        )
    raise RefusedError(f"{directory} is not empty, and is no ckptfs volume. Choose an empty directory for the volume")


def _refuse_text_that_toml_cannot_hold(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise ConfigError(f"the path {os.fsencode(path)!r} is not UTF-8, so {CONFIG_NAME} cannot hold it") from None


def _refuse_nested(paths: Sequence[Path]) -> None:
    for index, one in enumerate(paths):
        for other in paths[index + 1 :]:
            if one == other:
                raise RefusedError(f"the stripe {one} is given twice; each stripe is a directory of its own")
            if one.is_relative_to(other) or other.is_relative_to(one):
                raise RefusedError(f"the stripes {one} and {other} lie in each other; put them beside each other")


def _refuse_unusable_stripe(path: Path, directory: Path) -> None:
    if path.is_dir():
        refuse_taken_directory(path)
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise RefusedError(f"the stripe {path} is not writable for this user. Change its owner or mode")
    elif os.path.lexists(path):
        raise RefusedError(f"the stripe {path} is not a directory")
    elif not path.parent.is_dir() and path.parent not in (directory, *directory.parents):
        raise RefusedError(
            f"the stripe {path} cannot be made: {path.parent} does not exist. Is the device mounted? "
            "If it is, make that directory first"
        )
