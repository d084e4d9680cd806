"""How commands print: tables for people, one JSON object for programs.

On a terminal a table is drawn by rich; elsewhere columns are lined up with spaces, one row a line and never wrapped,
so that ``grep`` and ``awk`` work. File names may hold anything: what is not printable is shown escaped.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, cast

import click
import msgspec

from ckptfs.units import format_duration


def print_json(value: Any) -> None:
    """Print one object. Paths in bytes become text as Python reads file names (``os.fsdecode``), so nothing is lost."""
    click.echo(json.dumps(plain(value), indent=2))


def plain(value: Any) -> Any:
    """``value`` with records as dictionaries and bytes as text."""
    match value:
        case bytes():
            return os.fsdecode(value)
        case msgspec.Struct():
            return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        case list():
            return [plain(item) for item in cast("list[Any]", value)]
        case dict():
            return {key: plain(item) for key, item in cast("dict[str, Any]", value).items()}
        case _ if dataclasses.is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _:
            return value


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
    """Print ``rows``; the columns numbered in ``right`` hold numbers and line up at their right."""
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False)
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        Console().print(table)
        return
    widths = [max(len(row[index]) for row in (columns, *rows)) for index in range(len(columns))]
    for row in (columns, *rows):
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        click.echo("  ".join(cells).rstrip())


def print_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair a line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        click.echo(f"{name.ljust(width)}  {value}".rstrip())


def show_path(path: bytes) -> str:
    """A path in a volume, printable; its root as ``/``."""
    text = os.fsdecode(path) or "/"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def show_age(then_s: float) -> str:
    """``"5m 3s ago"`` for a time in seconds since the epoch."""
    return f"{format_duration(max(0.0, time.time() - then_s))} ago"


def show_expiry(expires_s: float | None) -> str:
    """How long something in the removal log stays."""
    if expires_s is None:
        return "until all is sealed"
    left_s = expires_s - time.time()
    return f"for {format_duration(left_s)}" if left_s > 0 else "until space is needed"
