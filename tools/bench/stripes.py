#!/usr/bin/env python3
"""How several slow devices add up: each stripe is held to a rate by the fault layer, and streams over them are timed.

    python tools/bench/stripes.py --below /data [--stripes 4] [--rate 100MB] [--size 1GB] [--json FILE]

One writer of one file over all stripes; one cold reader of it; as many writers as stripes, each of its own file, which
``width = auto`` lays on one stripe each. The factor is the stream's rate over one stripe's; 0.8 × stripes is wanted.
Writers are timed to the end of ``close``, when every byte has passed the limit; the real device below them, which all
stripes share, is not waited for. Needs root, for the cold reader.
"""

from __future__ import annotations

import argparse
import os
import threading
from pathlib import Path

import rig

_BLOCK = os.urandom(1 << 20)


def write_file(path: Path, size_bytes: int) -> None:
    """Write a file of whole MiB."""
    with path.open("wb", buffering=0) as file:
        for _ in range(size_bytes // len(_BLOCK)):
            file.write(_BLOCK)


def read_file(path: Path) -> None:
    """Read a file in order."""
    buffer = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def write_files(paths: list[Path], size_bytes: int) -> None:
    """Write the files at once."""
    writers = [threading.Thread(target=write_file, args=(path, size_bytes)) for path in paths]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--below", type=Path, required=True, metavar="DIR", help="where to make the volume")
    parser.add_argument("--stripes", type=int, default=4)
    parser.add_argument("--rate", type=rig.parse_size, default=10**8, help="of each stripe, bytes a second")
    parser.add_argument("--size", type=rig.parse_size, default=10**9, help="of what is written and read each time")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    limit = f"limit:{args.rate}"
    environment = {"CKPTFS_TESTING": "1", "CKPTFS_FAULT": f"lane.write={limit},lane.read={limit}"}
    size = args.size // args.stripes // len(_BLOCK) * len(_BLOCK) * args.stripes
    factors: dict[str, float] = {}
    with rig.mounted(args.below, stripes=args.stripes, environment=environment) as mounted:
        one = mounted.mountpoint / "one"
        several = [mounted.mountpoint / f"several{number}" for number in range(args.stripes)]
        took_s = rig.seconds(lambda: write_file(one, size))
        factors["one writer"] = size / took_s / args.rate
        rig.drop_caches()
        factors["one cold reader"] = size / rig.seconds(lambda: read_file(one)) / args.rate
        took_s = rig.seconds(lambda: write_files(several, size // args.stripes))
        factors[f"{args.stripes} writers, a file each"] = size / took_s / args.rate
    for what, factor in factors.items():
        wanted = 0.8 * args.stripes
        print(f"{what:28} {factor:5.2f} x one stripe  (wanted {wanted:.1f}: {'yes' if factor >= wanted else 'NO'})")
    rig.write_json(args.json, {"stripes": args.stripes, "rate": args.rate, "size_bytes": size, "factors": factors})


if __name__ == "__main__":
    main()
