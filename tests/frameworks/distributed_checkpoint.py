"""A program for test_torch.py: save and load a sharded state with torch.distributed.checkpoint.

    distributed_checkpoint.py DIRECTORY WAY:WORLD...

For each of the words, in turn, WORLD gloo processes ``save``, ``async_save`` or ``load``; they meet at a file in a temporary directory.
The weights are split over the ranks by rows, so that a world of another size loads another layout. The processes are forked: importing
torch takes longer than all they do. Every process ends with its parent or after its own timeout.
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.multiprocessing.spawn import start_processes

TIMEOUT = timedelta(seconds=60)
ROWS = 768


def whole_weights() -> torch.Tensor:
    return torch.arange(ROWS * 1024, dtype=torch.float32).reshape(ROWS, 1024)


def rank_main(rank: int, world: int, way: str, directory: str, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=TIMEOUT)
    mesh = init_device_mesh("cpu", (world,))
    loads = way == "load"
    weights = torch.zeros(ROWS, 1024) if loads else whole_weights()
    sharded: DTensor = distribute_tensor(weights, mesh, [Shard(0)])
    state = {"weights": sharded, "bias": torch.zeros(99) if loads else torch.arange(99.0), "step": torch.tensor(17)}
    if way == "save":
        save(state, checkpoint_id=directory)
    elif way == "async_save":
        pending = async_save(state, checkpoint_id=directory)
        assert isinstance(pending, Future)
        pending.result()
    else:
        load(state, checkpoint_id=directory)
        rows = ROWS // world
        assert torch.equal(sharded.to_local(), whole_weights()[rank * rows : (rank + 1) * rows])
        assert torch.equal(state["bias"], torch.arange(99.0))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    directory = sys.argv[1]
    for word in sys.argv[2:]:
        way, world = word.split(":")
        with tempfile.TemporaryDirectory() as temporary:
            arguments = (int(world), way, directory, str(Path(temporary, "meeting")))
            start_processes(rank_main, arguments, nprocs=int(world), start_method="fork")


if __name__ == "__main__":
    main()
