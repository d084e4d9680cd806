"""Contents that say what they are: each line names its file, version and offset, so a wrong byte tells where it came from."""

from __future__ import annotations

import re

LINE_BYTES = 64
_LINE = re.compile(rb"(\S+ \d+) @(\d{10}) \.*\n")


def content(label: str, version: int, size: int) -> bytes:
    """``size`` bytes of version ``version`` of the file ``label`` (no spaces in it)."""
    lines = [
        f"{label} {version} @{offset:010d} ".encode().ljust(LINE_BYTES - 1, b".") + b"\n"
        for offset in range(0, size, LINE_BYTES)
    ]
    return b"".join(lines)[:size]


def describe(found: bytes) -> str:
    """Which parts of which contents these bytes are, for messages: runs of lines."""
    runs: list[str] = []
    last, start = "", 0
    for at in range(0, len(found), LINE_BYTES):
        line = found[at : at + LINE_BYTES]
        match = _LINE.fullmatch(line)
        if match is not None and int(match[2]) == at:
            what = match[1].decode()
        elif not line.strip(b"\0"):
            what = "zeros"
        elif at + LINE_BYTES > len(found):
            what = last
        else:
            what = f"foreign {line[:24]!r}"
        if what != last:
            runs += [f"{last} [{start}, {at})"] if last else []
            last, start = what, at
    return "; ".join([*runs, f"{last} [{start}, {len(found)})"]) if found else "nothing"
