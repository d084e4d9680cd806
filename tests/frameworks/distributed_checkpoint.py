"""A program for test_torch.py: save or load a sharded state with torch.distributed.checkpoint.

    distributed_checkpoint.py WORLD save|async_save|load DIRECTORY

Starts WORLD gloo processes, which meet at a file in a temporary directory. The weights are split over the ranks by rows, so that a
world of another size loads another layout. Every process ends with its parent or after its own timeout.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

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
        dcp.save(state, checkpoint_id=directory)
    elif way == "async_save":
        dcp.async_save(state, checkpoint_id=directory).result()
    else:
        dcp.load(state, checkpoint_id=directory)
        rows = ROWS // world
        assert torch.equal(sharded.to_local(), whole_weights()[rank * rows : (rank + 1) * rows])
        assert torch.equal(state["bias"], torch.arange(99.0))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    world, way, directory = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    with tempfile.TemporaryDirectory() as temporary:
        meeting = str(Path(temporary, "meeting"))
        torch.multiprocessing.spawn(rank_main, (world, way, directory, meeting), nprocs=world)


if __name__ == "__main__":
    main()
