"""Sizes and durations as people write them, to and from numbers."""

from __future__ import annotations

import re

_BINARY = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "p": 2**50}
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_SECONDS = {"ms": 0.001, "s": 1, "": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_size(text: str | int) -> int:
    """Bytes from ``"8MiB"``, ``"100MB"`` (decimal), ``"64K"`` (binary) or a plain number. Raises ``ValueError``."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(i?)(b?)\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is not a size; write for example 8MiB, 500MB or 1048576")
    number, prefix, binary, byte = match.groups()
    table = _DECIMAL if byte and not binary else _BINARY
    return int(float(number) * table[prefix.lower()])


def format_size(count: float) -> str:
    """``8388608`` → ``"8.0 MiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} PiB"


def parse_duration(text: str | float) -> float:
    """Seconds from ``"1h"``, ``"90s"``, ``"7d"``, ``"500ms"`` or a plain number of seconds. Raises ``ValueError``."""
    if isinstance(text, int | float):
        return float(text)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text, re.IGNORECASE)
    if match is None or match.group(2).lower() not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 15m, 1h or 7d")
    return float(match.group(1)) * _SECONDS[match.group(2).lower()]


def format_duration(seconds: float) -> str:
    """``5400`` → ``"1h 30m"``; two units at most."""
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    left = int(seconds)
    parts = [(left // 86400, "d"), (left // 3600 % 24, "h"), (left // 60 % 60, "m"), (left % 60, "s")]
    shown = [f"{count}{unit}" for count, unit in parts if count]
    return " ".join(shown[:2])
