"""``volume.toml``: what a volume is made of, read into frozen records, and the commented file that ``mkfs`` writes.

A file is read in three steps, each with its own kind of message: TOML syntax; keys (an unknown one is an error that
names the nearest known one and its line, so a misspelt setting is never silently ignored); types and ranges. Sizes
and durations may be text (``"8MiB"``, ``"1h"``) or numbers (bytes, seconds). Relative stripe paths are relative to
the volume directory.

It must not know what is on the disks: whether the stripes are there and are the right ones is for
``volume/stripes.py``.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from ckptfs.errors import ConfigError, NotAVolume
from ckptfs.units import format_size, parse_duration, parse_size

CONFIG_NAME = "volume.toml"

DEFAULT_CHUNK_BYTES = 8 << 20
MIN_CHUNK_BYTES = 64 << 10
"""Below, a chunk costs more to look up than to copy."""
MAX_CHUNK_BYTES = 256 << 20
"""Above, most files would lie on fewer stripes than there are."""
DEFAULT_UNDELETE_WINDOW_S = 3600.0

Width = int | Literal["auto"]


class VolumeSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[volume]``. ``chunk_size`` in bytes; ``width`` in stripes, or "auto" (ckptfs/image/placement.py has the
    rule).
    """

    id: str
    chunk_size: int = DEFAULT_CHUNK_BYTES
    width: Width = "auto"


class StripeSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[stripe]]``: ``path`` absolute; ``reserve_bytes`` to leave free, None: a share of the stripe's size."""

    path: Path
    id: str
    reserve_bytes: int | None = msgspec.field(name="reserve", default=None)


class SpaceSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[space]``."""

    undelete_window_s: float = msgspec.field(name="undelete_window", default=DEFAULT_UNDELETE_WINDOW_S)


class VolumeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole ``volume.toml``. The number of a stripe is its place in ``stripes``: metadata refers to it."""

    volume: VolumeSection
    stripes: tuple[StripeSection, ...] = msgspec.field(name="stripe")
    space: SpaceSection = SpaceSection()


def load(directory: Path) -> VolumeConfig:
    """Read the configuration of the volume in ``directory``.

    Raises :class:`NotAVolume` when there is none, :class:`ConfigError` when it does not say what it must.
    """
    path = directory / CONFIG_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise NotAVolume(
            f"{directory} is no ckptfs volume: it has no {CONFIG_NAME}. If it was one, put that file back; "
            f"if not, make one: ckptfs mkfs {directory}"
        ) from None
    except UnicodeDecodeError as why:
        raise ConfigError(f"{path} is not UTF-8 text: {why.reason} at byte {why.start}") from None
    return parse(text, directory)


def parse(text: str, directory: Path) -> VolumeConfig:
    """As :func:`load`, from the text of a ``volume.toml`` that lies in ``directory``."""
    path = directory / CONFIG_NAME
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as why:
        raise ConfigError(f"{path} is not valid TOML: {why}") from None
    for section, kind in _SECTIONS.items():
        if section in document and not isinstance(document[section], kind):
            shape = "[[stripe]], once for each stripe" if kind is list else f"[{section}]"
            raise ConfigError(f"{path}: {section!r} must be a section, written {shape}")
    _refuse_unknown_keys(path, text, document)
    _read_quantities(path, text, document)
    for stripe in document.get("stripe", []):
        if isinstance(stripe.get("path"), str):
            stripe["path"] = directory.absolute() / stripe["path"]
    width = document.get("volume", {}).get("width", "auto")
    if isinstance(width, str) and width != "auto":
        at = _at(text, "volume", 0, "width")
        raise ConfigError(f'{path}{at}: width is {width!r}; it must be "auto" or a number without quotes')
    try:
        config = msgspec.convert(document, VolumeConfig)
    except msgspec.ValidationError as why:
        raise ConfigError(f"{path}: {_plain(str(why))}") from None
    _check(path, config)
    return config


def check_chunk_size(chunk_size: int) -> None:
    """Raise :class:`ConfigError` for a chunk size (bytes) that a volume cannot have."""
    if not MIN_CHUNK_BYTES <= chunk_size <= MAX_CHUNK_BYTES or chunk_size & (chunk_size - 1):
        raise ConfigError(
            f"a chunk size of {chunk_size} bytes is not possible: it must be a power of two "
            f"from {format_size(MIN_CHUNK_BYTES)} to {format_size(MAX_CHUNK_BYTES)}; "
            f"{format_size(DEFAULT_CHUNK_BYTES)} suits most"
        )


def check_width(width: Width, stripe_count: int) -> None:
    """Raise :class:`ConfigError` for a width that ``stripe_count`` stripes do not allow."""
    if width != "auto" and not 1 <= width <= stripe_count:
        raise ConfigError(
            f"a width of {width} is not possible with {stripe_count} stripe(s): "
            f"use auto, or a number from 1 to {stripe_count}"
        )


def render_default(config: VolumeConfig, directory: Path) -> str:
    """The text of a commented ``volume.toml`` that says what ``config`` says, for a volume in ``directory``."""
    stripes = "\n".join(_render_stripe(stripe, directory) for stripe in config.stripes)
    width = '"auto"' if config.volume.width == "auto" else str(config.volume.width)
    return _TEMPLATE.format(
        id=_quote(config.volume.id),
        chunk_size=_render_size(config.volume.chunk_size),
        width=width,
        stripes=stripes,
        undelete_window=_render_duration(config.space.undelete_window_s),
    )


_SECTIONS: Mapping[str, type] = {"volume": dict, "stripe": list, "space": dict}

_KEYS: Mapping[str, Sequence[str]] = {
    "volume": ("id", "chunk_size", "width"),
    "stripe": ("path", "reserve", "id"),
    "space": ("undelete_window",),
}

_QUANTITIES: Mapping[tuple[str, str], Callable[[Any], float]] = {
    ("volume", "chunk_size"): parse_size,
    ("stripe", "reserve"): parse_size,
    ("space", "undelete_window"): parse_duration,
}

_TEMPLATE = """\
# A ckptfs volume. Changes take effect at the next mount.

[volume]
# Says which stripes belong to this volume. Never change it.
id = {id}
# Files are cut into chunks of this size, and the chunks are laid over the stripes in turn. A power of two from
# 64KiB to 256MiB. A new value holds for files written from then on.
chunk_size = {chunk_size}
# Over how many stripes a file is laid. "auto": a file written alone over all of them, files written at the same
# time over one each, in turn. A number fixes it.
width = {width}

# One section for each stripe: a directory, normally on a device of its own. Relative paths are relative to this
# directory. The order of the sections is part of the data: never change it.
#
# reserve: what is left free for others on the same filesystem; when not set, 2% of its size, at least 16MiB and at
# most 4GiB. id: as in the stripe's own ckptfs-stripe.json; never change it.
{stripes}
[space]
# How long removed and overwritten files can be had back (ckptfs undelete, ckptfs previous), unless their space is
# needed.
undelete_window = {undelete_window}
"""


def _render_stripe(stripe: StripeSection, directory: Path) -> str:
    base = directory.absolute()
    path = stripe.path.relative_to(base) if stripe.path.is_relative_to(base) else stripe.path
    lines = ["[[stripe]]", f"path = {_quote(str(path))}"]
    reserve = stripe.reserve_bytes
    lines.append('# reserve = "1GiB"' if reserve is None else f"reserve = {_render_size(reserve)}")
    lines.append(f"id = {_quote(stripe.id)}")
    return "\n".join(lines) + "\n"


def _render_size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % size == 0:
            return f'"{count // size}{unit}"'
    return str(count)


def _render_duration(seconds: float) -> str:
    for unit, length_s in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds and seconds % length_s == 0:
            return f'"{int(seconds) // length_s}{unit}"'
    return str(seconds)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _refuse_unknown_keys(path: Path, text: str, document: Mapping[str, Any]) -> None:
    for section in document:
        if section not in _SECTIONS:
            at = _at(text, section, 0, None)
            raise ConfigError(f"{path}{at}: there is no section [{section}]{_nearest(section, _SECTIONS)}")
    for section, index, table in _tables(path, document):
        for key in table:
            if key not in _KEYS[section]:
                at = _at(text, section, index, key)
                raise ConfigError(f"{path}{at}: there is no {key!r} in [{section}]{_nearest(key, _KEYS[section])}")


def _read_quantities(path: Path, text: str, document: Mapping[str, Any]) -> None:
    for section, index, table in _tables(path, document):
        for key, value in table.items():
            parser = _QUANTITIES.get((section, key))
            if parser is None:
                continue
            try:
                table[key] = _read_quantity(parser, value)
            except ValueError as why:
                raise ConfigError(f"{path}{_at(text, section, index, key)}: {key}: {why}") from None


def _read_quantity(parser: Callable[[Any], float], value: object) -> float:
    quantity = parser(value if isinstance(value, int | float) and not isinstance(value, bool) else str(value))
    if quantity < 0:
        raise ValueError("it cannot be negative")
    return quantity


def _tables(path: Path, document: Mapping[str, Any]) -> list[tuple[str, int, dict[str, Any]]]:
    found: list[tuple[str, int, dict[str, Any]]] = []
    for section, content in document.items():
        tables = cast("list[Any]", content if isinstance(content, list) else [content])
        for index, table in enumerate(tables):
            if not isinstance(table, dict):
                raise ConfigError(f"{path}: {section!r} must be a section, written [[{section}]]")
            found.append((section, index, cast("dict[str, Any]", table)))
    return found


def _nearest(word: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; there is: {', '.join(known)}"


def _at(text: str, section: str, index: int, key: str | None) -> str:
    """``", line 7"``: where ``key`` of a section's table number ``index`` stands, or, without a key, the section.

    Empty where the file is written in some rarer way, inline tables for example.
    """
    current, seen = "", -1
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?\s*([\w-]+)\s*\]", line)
        if header is not None:
            current = header.group(1)
            seen += current == section
            if key is None and current == section:
                return f", line {number}"
            continue
        in_table = current == section and seen == index
        wanted = key if key is not None and in_table else section if key is None and not current else None
        if wanted is not None and re.match(rf"\s*[\"']?{re.escape(wanted)}[\"']?\s*=", line):
            return f", line {number}"
    return ""


def _plain(message: str) -> str:
    """The sentence of msgspec, with its JSONPath as people write TOML: ``$.stripe[0].id`` → ``stripe[0].id``."""
    return message.replace("`$.", "`").replace(" - at `$`", "")


def _check(path: Path, config: VolumeConfig) -> None:
    try:
        check_chunk_size(config.volume.chunk_size)
        check_width(config.volume.width, len(config.stripes))
    except ConfigError as why:
        raise ConfigError(f"{path}: {why}") from None
    if not config.stripes:
        raise ConfigError(f"{path}: a volume needs at least one [[stripe]]")
    if not config.volume.id:
        raise ConfigError(f"{path}: [volume] id is empty")
    for what, values in (("path", [str(s.path) for s in config.stripes]), ("id", [s.id for s in config.stripes])):
        twice = next((value for value in values if values.count(value) > 1), None)
        if twice is not None:
            raise ConfigError(f"{path}: two stripes have the {what} {twice}; each stripe is a directory of its own")
