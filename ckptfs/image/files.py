"""The lane files of a stripe: what they are called, which there are, how they go."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

IMAGES_DIRECTORY = "images"
"""The directory of a stripe that holds lanes; whoever makes the stripe makes it."""

_LANE_NAME = re.compile(r"([0-9a-f]{16})\.(\d+)")


def lane_path(stripe: Path, image_id: int, lane: int) -> Path:
    """The lane's file: the image id as 16 hexadecimal digits, a dot, the lane's number."""
    return stripe / IMAGES_DIRECTORY / f"{image_id:016x}.{lane}"


def list_lanes(stripe: Path) -> Iterator[tuple[int, int]]:
    """The image id and lane number of every lane file on a stripe, in no order; other names are passed over."""
    with os.scandir(stripe / IMAGES_DIRECTORY) as entries:
        for entry in entries:
            match = _LANE_NAME.fullmatch(entry.name)
            if match is not None:
                yield int(match.group(1), 16), int(match.group(2))


def unlink_image(image_id: int, width: int, stripes: Sequence[Path]) -> None:
    """Remove the lanes of an image, ``stripes[k]`` holding lane *k*; a missing one is no error. Not flushed."""
    for lane, stripe in zip(range(width), stripes, strict=True):
        lane_path(stripe, image_id, lane).unlink(missing_ok=True)
