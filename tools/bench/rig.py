"""What the benchmarks share: a temporary volume that is mounted, cold caches, and figures with their spread.

A volume is made with the command line, as a user would. ``stripes`` directories lie beside each other, so on one device: what
is compared is the cost of ckptfs on top of a directory of that device, not one device with several.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(_SOURCE))  # the benchmarks measure, and use, the source tree that they lie in

from ckptfs.units import parse_size  # noqa: E402  # the path comes first
from ckptfs.volume.lock import read_holder  # noqa: E402

__all__ = ["Mounted", "Spread", "ckptfs", "drop_caches", "flush", "mounted", "parse_size", "seconds", "write_json"]


@dataclass(frozen=True, slots=True)
class Mounted:
    """A temporary volume while it is mounted."""

    volume: Path
    mountpoint: Path

    def daemon_pid(self) -> int:
        """The process that serves it."""
        holder = read_holder(self.volume)
        if holder is None:
            raise RuntimeError(f"nobody serves {self.volume}")
        return holder.pid

    def resident_bytes(self, *, peak: bool = False) -> int:
        """The daemon's resident memory, now or at its highest."""
        wanted = "VmHWM" if peak else "VmRSS"
        for line in Path(f"/proc/{self.daemon_pid()}/status").read_text().splitlines():
            if line.startswith(wanted):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"the kernel says no {wanted}")


def ckptfs(*arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run the ckptfs of this source tree; returns its output. Raises ``CalledProcessError``."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ckptfs", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_SOURCE), **(environment or {})},
    )
    return done.stdout


@contextmanager
def mounted(
    parent: Path, *, stripes: int = 1, width: str = "auto", environment: Mapping[str, str] | None = None
) -> Generator[Mounted]:
    """A new volume below ``parent``, mounted; unmounted and removed at the end."""
    base = Path(tempfile.mkdtemp(prefix="ckptfs-bench.", dir=parent))
    made = Mounted(base / "volume", base / "mnt")
    made.mountpoint.mkdir()
    try:
        options = [word for number in range(stripes) for word in ("--stripe", str(base / f"stripe{number}"))]
        ckptfs("mkfs", str(made.volume), *options, "--width", width)
        ckptfs("mount", str(made.volume), str(made.mountpoint), environment=environment)
        try:
            yield made
        finally:
            ckptfs("umount", str(made.mountpoint))
    finally:
        made.mountpoint.chmod(0o755)
        shutil.rmtree(base)


def flush() -> None:
    """Write everything back, so that nothing that was written before burdens what is measured next."""
    os.sync()


def drop_caches(settle_s: float = 0.2) -> None:
    """Empty the page cache of the mount, of its stripes and of every directory. Needs root."""
    flush()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
    except PermissionError:
        raise SystemExit("cold reads need root, to empty the page cache: run as root, or with --no-cold") from None
    time.sleep(settle_s)


def seconds(action: Callable[[], object]) -> float:
    """How long ``action`` takes."""
    start = time.perf_counter()
    result = action()
    elapsed = time.perf_counter() - start
    del result  # freeing what was loaded is not part of it
    return elapsed


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, quartiles and extremes of some figures."""

    median: float
    low: float
    lower_quartile: float
    upper_quartile: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        two_or_more = list(figures) * 2 if len(figures) == 1 else figures
        lower, _, upper = statistics.quantiles(two_or_more, n=4, method="inclusive")
        return cls(statistics.median(figures), min(figures), lower, upper, max(figures))

    def __str__(self) -> str:
        return (
            f"{self.median:.3f} [{self.lower_quartile:.3f} {self.upper_quartile:.3f}] ({self.low:.3f} {self.high:.3f})"
        )


def write_json(path: Path | None, content: dict[str, Any]) -> None:
    """Save the figures where ``--json`` asks."""
    if path is not None:
        path.write_text(json.dumps(content, indent=1) + "\n")
