#!/usr/bin/env python3
"""Loses power under random saves until something that must be there is not; needs root.

    tools/chaos/power_loss.py [--seconds 600] [--seed N] [--rounds 5]

Each seed has a fresh volume on a loop device (tests/support/power.py) and a few rounds (tests/support/chaos.py). The
exit status is 1 when an oracle disagreed, with the seed and the story that led there. A seed does not repeat the timing,
so it may have to be run more than once.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.chaos import PowerChaos
from tests.support.power import node_on_one_device


def main() -> int:
    """Run; returns the exit status."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=600, help="begin no seed after that long")
    options.add_argument("--seed", type=int, help="only this one")
    options.add_argument("--rounds", type=int, default=5, help="losses of power for each seed")
    asked = options.parse_args()
    first = random.SystemRandom().randrange(1 << 30)
    end_s = time.monotonic() + asked.seconds
    for seed in itertools.count(first) if asked.seed is None else [asked.seed]:
        if time.monotonic() > end_s:
            break
        with tempfile.TemporaryDirectory(prefix="ckptfs-chaos.") as base:
            node = node_on_one_device(Path(base))
            try:
                chaos = PowerChaos(node, seed)
                chaos.start()
                operations = [chaos.round() for _ in range(asked.rounds)]
                chaos.finish()
            except AssertionError as why:
                print(f"FAILED: {why}", file=sys.stderr)
                return 1
            finally:
                node.dispose()
        print(f"seed {seed}: {asked.rounds} losses of power, {sum(operations)} operations", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
