"""Kinds of command-line arguments: paths, sizes, widths."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckptfs.units import parse_size

if TYPE_CHECKING:
    from ckptfs.config import Width

PATH = click.Path(path_type=Path, readable=False)  # who may not read it is told so like everywhere else


def to_size(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Bytes from ``8MiB``, as an option's callback."""
    try:
        return None if value is None else parse_size(value)
    except ValueError as why:
        raise click.BadParameter(str(why)) from None


def to_width(_context: click.Context, _parameter: click.Parameter, value: str) -> Width:
    """``auto`` or a number of stripes, as an option's callback."""
    if value == "auto":
        return "auto"
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither auto nor a number")
    return int(value)
