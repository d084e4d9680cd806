#!/usr/bin/env python3
"""An ordinary training loop that saves checkpoints. It knows of files and directories, and of nothing below them.

A small character-level transformer learns to predict its own source. Every ``--save-every`` steps the weights,
AdamW's moments, the learning-rate schedule and the random state are saved with ``torch.save``: in one file, or with
``--sharded`` in several that are written at the same time, as the ranks of a larger job would. A checkpoint gets its
final name only when it is whole, so a run that is killed while it saves leaves nothing that looks like a checkpoint;
``--resume`` goes on from the newest one.

The last line tells the loss and a hash of the weights, to the last bit: a run that was interrupted and resumed must
end with the same line as one that was not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 256, 4, 4, 64, 8
State = dict[str, Any]


class Block(nn.Module):
    """One layer: causal self-attention, then a feed-forward network, each on a normalised input and added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attention_in(self.attention_norm(x))
        query, key, value = mixed.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.attention_out(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.feed_forward(self.forward_norm(x)))


class Model(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        positions = torch.arange(text.shape[1])
        return self.head(self.norm(self.blocks(self.byte(text) + self.position(positions))))


class Training:
    """All that training changes, as one state dict."""

    def __init__(self, steps: int) -> None:
        self.step = 0
        self.model = Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=1e-3, total_steps=steps)

    def state(self) -> State:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": torch.get_rng_state(),
        }

    def restore(self, state: State) -> None:
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        torch.set_rng_state(state["random"])

    def advance(self, text: Tensor) -> float:
        """Train on one random batch; returns its loss."""
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,))
        batch = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
        logits = self.model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.step += 1
        return loss.item()


def shards_of(state: State, count: int) -> list[State]:
    """``state`` in ``count`` parts: each tensor and its moments go to the emptiest part, the rest to the first."""
    shards: list[State] = [{"model": {}, "moments": {}} for _ in range(count)]
    elements = [0] * count
    for index, (name, tensor) in enumerate(state["model"].items()):
        rank = elements.index(min(elements))
        elements[rank] += tensor.numel()
        shards[rank]["model"][name] = tensor
        shards[rank]["moments"][index] = state["optimizer"]["state"][index]
    rest = {key: state[key] for key in ("step", "schedule", "random")}
    shards[0] |= rest | {"groups": state["optimizer"]["param_groups"]}
    return shards


def state_of(shards: list[State]) -> State:
    """The inverse of :func:`shards_of`."""
    first = shards[0]
    moments = {index: moment for shard in shards for index, moment in shard["moments"].items()}
    return {
        "step": first["step"],
        "model": {name: tensor for shard in shards for name, tensor in shard["model"].items()},
        "optimizer": {"state": moments, "param_groups": first["groups"]},
        "schedule": first["schedule"],
        "random": first["random"],
    }


def save(state: State, directory: Path, shard_count: int) -> Path:
    """Write the checkpoint of a step, whole or not at all: in one file, or in a directory of shards."""
    name = f"step_{state['step']:06d}"
    if not shard_count:
        unfinished, final = directory / f"{name}.pt.tmp", directory / f"{name}.pt"
        torch.save(state, unfinished)
    else:
        unfinished, final = directory / f"{name}.tmp", directory / name
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        files = [unfinished / f"shard_{rank}_of_{shard_count}.pt" for rank in range(shard_count)]
        with ThreadPoolExecutor(shard_count) as ranks:
            list(ranks.map(torch.save, shards_of(state, shard_count), files))
    os.replace(unfinished, final)
    return final


def newest(directory: Path) -> Path | None:
    """The last checkpoint that was saved whole."""
    found = [path for path in directory.glob("step_*") if path.suffix != ".tmp"]
    return max(found, key=lambda path: path.stem, default=None)


def load(checkpoint: Path) -> State:
    """The state that :func:`save` wrote."""
    read = partial(torch.load, weights_only=True)
    if checkpoint.is_file():
        return read(checkpoint)
    files = sorted(checkpoint.iterdir())
    with ThreadPoolExecutor(len(files)) as ranks:
        return state_of(list(ranks.map(read, files)))


def bytes_of(checkpoint: Path) -> int:
    """Its size in bytes."""
    files = [checkpoint] if checkpoint.is_file() else list(checkpoint.iterdir())
    return sum(file.stat().st_size for file in files)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--dir", type=Path, required=True, help="where checkpoints go")
    parser.add_argument("--steps", type=int, default=60, help="train up to this step (default: 60)")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS", help="save after so many (default: 10)")
    parser.add_argument(
        "--sharded", type=int, nargs="?", const=4, default=0, metavar="COUNT", help="save in COUNT files (default: 4)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    arguments = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    text = torch.frombuffer(bytearray(Path(__file__).read_bytes()), dtype=torch.uint8).long()
    training = Training(arguments.steps)
    arguments.dir.mkdir(parents=True, exist_ok=True)
    checkpoint = newest(arguments.dir) if arguments.resume else None
    if checkpoint is not None:
        began = time.monotonic()
        training.restore(load(checkpoint))
        print(f"resumed from {checkpoint.name} in {time.monotonic() - began:.2f} s", flush=True)

    loss = float("nan")
    while training.step < arguments.steps:
        loss = training.advance(text)
        print(f"step {training.step} loss {loss:.4f}", flush=True)
        if training.step % arguments.save_every == 0:
            began = time.monotonic()
            saved = save(training.state(), arguments.dir, arguments.sharded)
            took_s = time.monotonic() - began
            print(f"saved {saved.name}: {bytes_of(saved) / 1e6:.1f} MB in {took_s:.2f} s", flush=True)

    digest = hashlib.sha256()
    for tensor in training.model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    weights = digest.hexdigest()[:16]
    print(f"finished: step {training.step} loss {loss:.6f} = {loss.hex()} weights {weights}", flush=True)


if __name__ == "__main__":
    main()
