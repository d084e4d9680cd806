#!/usr/bin/env python3
"""torch.save and torch.load, unmodified, on a mount and in a native directory of the same device, in alternation.

    python tools/bench/save_load.py --against /data/native [--mount /checkpoints] [--pairs 15] [--size 512MiB] [--json FILE]

Without --mount it makes a volume beside the native directory and removes it. Each pair does the same on both sides, the side
that begins changing from pair to pair, with everything written back between: no side pays for the other's writes. A ratio is
the native time divided by the mount's: 1 is as fast, 0.5 twice as slow. It is taken per pair, and the median is over the pairs.

Saving ends when the program has the file closed, on both sides: neither waits for the device. Cold: the page caches of
mount, stripes and native directory were emptied. Warm: loaded once before. "mmap": ``mmap=True``, and a byte of every
page is read. Four shards are four files, saved and loaded one after the other by one process, or at once by four.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rig
import torch

State = dict[str, Any]

TARGETS = {"save": 0.6, "load cold": 0.7, "load warm": 0.9, "4 shards, 4 processes: save": 0.6}
"""Below this the mount is slower than it may be."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many files hold the state, and how many processes save and load them at once."""

    shards: int
    processes: int

    def __str__(self) -> str:
        if self.shards == 1:
            return "1 file"
        return f"{self.shards} shards, {self.processes} process{'es' if self.processes > 1 else ''}"


def make_state(size_bytes: int, seed: int = 0) -> State:
    """A transformer's weights in bf16 with their two fp32 moments, ``size_bytes`` or a little more in all."""
    torch.manual_seed(seed)
    hidden = 1024 if size_bytes >= 128 << 20 else 256
    weights: dict[str, torch.Tensor] = {}
    moments: dict[int, dict[str, torch.Tensor]] = {}
    total = layer = 0
    while total < size_bytes:
        for name, shape in (
            ("attention.qkv", (3 * hidden, hidden)),
            ("attention.out", (hidden, hidden)),
            ("mlp.up", (4 * hidden, hidden)),
            ("mlp.down", (hidden, 4 * hidden)),
            ("norm", (hidden,)),
        ):
            weight = torch.randn(shape).to(torch.bfloat16)
            first, second = torch.randn(shape), torch.rand(shape)
            moments[len(weights)] = {"step": torch.tensor(1000.0), "exp_avg": first, "exp_avg_sq": second}
            weights[f"layers.{layer}.{name}"] = weight
            total += weight.nbytes + first.nbytes + second.nbytes
            if total >= size_bytes:
                break
        layer += 1
    return {"model": weights, "optimizer": {"state": moments, "param_groups": [{"lr": 1e-4}]}, "step": 1000}


def _touch_all(loaded: object) -> None:
    """Read every page of every tensor: what a mapped load leaves to later."""
    if isinstance(loaded, torch.Tensor):
        if loaded.nbytes >= 4096:
            loaded.flatten().view(torch.uint8)[::4096].sum()
    elif isinstance(loaded, dict):
        for value in loaded.values():
            _touch_all(value)


def save(state: State, path: Path) -> None:
    """An ordinary save."""
    torch.save(state, path)


def load(_state: State, path: Path) -> None:
    """An ordinary load."""
    torch.load(path)


def load_mapped(_state: State, path: Path) -> None:
    """A load that maps the file, and every page of it read."""
    _touch_all(torch.load(path, mmap=True))


Work = Callable[[State, Path], None]


class Workers:
    """Processes that each do the same to their own shard at once, as the ranks of a training job would."""

    def __init__(self, count: int, shard_bytes: int) -> None:
        context = multiprocessing.get_context("fork")
        self._barrier = context.Barrier(count + 1)
        self._pipes = []
        self._processes = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=self._serve, args=(rank, shard_bytes, theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def _serve(self, rank: int, shard_bytes: int, orders: Any) -> None:
        torch.set_num_threads(1)
        state = make_state(shard_bytes, rank)
        while True:
            order = orders.recv()
            if order is None:
                return
            work, directory = order
            self._barrier.wait()
            work(state, shard_path(directory, rank))
            self._barrier.wait()

    def run(self, work: Work, directory: Path) -> float:
        """How long it takes until all are done, in seconds."""
        for pipe in self._pipes:
            pipe.send((work, directory))
        self._barrier.wait()
        start = time.perf_counter()
        self._barrier.wait()
        return time.perf_counter() - start

    def stop(self) -> None:
        for pipe in self._pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


def shard_path(directory: Path, number: int) -> Path:
    """The file of a shard."""
    return directory / f"shard{number}.pt"


class Case:
    """One shape of checkpoint; measures one side of a pair at a time."""

    def __init__(self, shape: Shape, size_bytes: int) -> None:
        self.shape = shape
        shard_bytes = size_bytes // shape.shards
        self._workers = Workers(shape.processes, shard_bytes) if shape.processes > 1 else None
        self._states = [] if self._workers else [make_state(shard_bytes, n) for n in range(shape.shards)]

    def measure(self, directory: Path, *, cold: bool) -> Iterator[tuple[str, float]]:
        """The name and the seconds of each thing done in ``directory``; leaves it empty."""
        # Emptied here too: a side that has just removed its file would get warm memory back, and that is a large difference.
        rig.drop_caches() if cold else rig.flush()
        yield "save", self._run(save, directory)
        rig.flush()
        if cold:
            rig.drop_caches()
            yield "load cold", self._run(load, directory)
        else:
            self._run(load, directory)
        yield "load warm", self._run(load, directory)
        if cold:
            rig.drop_caches()
            yield "mmap cold", self._run(load_mapped, directory)
        yield "mmap warm", self._run(load_mapped, directory)
        for number in range(self.shape.shards):
            shard_path(directory, number).unlink()

    def _run(self, work: Work, directory: Path) -> float:
        if self._workers is not None:
            return self._workers.run(work, directory)

        def all_shards() -> None:
            for number, state in enumerate(self._states):
                work(state, shard_path(directory, number))

        return rig.seconds(all_shards)

    def stop(self) -> None:
        if self._workers is not None:
            self._workers.stop()


def main() -> None:
    """Measure and print."""
    args = _arguments()
    native: Path = args.against
    native.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(2)
    figures: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        mount: Path | None = args.mount
        if mount is None:
            mount = stack.enter_context(rig.mounted(native.parent, stripes=args.stripes)).mountpoint
        sides = {side: Path(tempfile.mkdtemp(dir=where)) for side, where in (("native", native), ("mount", mount))}
        for directory in sides.values():
            stack.callback(directory.rmdir)
        for shape in args.shapes:
            case = Case(shape, args.size)
            try:
                for pair in range(args.pairs + 1):
                    order = list(sides) if pair % 2 else list(reversed(sides))
                    for side in order:
                        for what, took_s in case.measure(sides[side], cold=args.cold):
                            if pair:  # the first warms up interpreter, allocator and metadata
                                figures.setdefault(f"{shape}: {what}", {}).setdefault(side, []).append(took_s)
            finally:
                case.stop()
    report = _report(figures)
    rig.write_json(
        args.json,
        {"pairs": args.pairs, "size_bytes": args.size, "cpus": os.cpu_count(), "seconds": figures, "ratios": report},
    )


def _report(figures: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    print("median [quartiles] (lowest highest); ratio = native / mount, per pair")
    print(f"{'':34}{'native s':>38}{'mount s':>38}{'ratio':>38}")
    ratios: dict[str, dict[str, float]] = {}
    for what, sides in figures.items():
        ratio = rig.Spread.of([n / m for n, m in zip(sides["native"], sides["mount"], strict=True)])
        native, mount = rig.Spread.of(sides["native"]), rig.Spread.of(sides["mount"])
        target = TARGETS.get(what.removeprefix("1 file: "))
        verdict = "" if target is None else f"  (wanted {target}: {'yes' if ratio.median >= target else 'NO'})"
        print(f"{what:34}{native!s:>38}{mount!s:>38}{ratio!s:>38}{verdict}")
        ratios[what] = asdict(ratio)
    return ratios


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, metavar="DIR", help="the native directory")
    parser.add_argument("--mount", type=Path, help="a mounted volume on the same device; default: a temporary one")
    parser.add_argument("--stripes", type=int, default=1, help="of the temporary volume")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--size", type=rig.parse_size, default=512 << 20, help="of the state dict, all shards together")
    parser.add_argument("--only", type=int, choices=(0, 1, 2), help="one shape: 1 file, 4 shards, 4 processes")
    parser.add_argument("--no-cold", dest="cold", action="store_false", help="leave out what needs root")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    shapes = [Shape(1, 1), Shape(4, 1), Shape(4, 4)]
    args.shapes = shapes if args.only is None else [shapes[args.only]]
    return args


if __name__ == "__main__":
    main()
