"""torch.save, torch.load and torch.distributed.checkpoint, unmodified."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import Pair
from tests.support.mounted import MountedVolume

torch = pytest.importorskip("torch")

State = dict[str, Any]

CHECKPOINTING = Path(__file__).with_name("distributed_checkpoint.py")


def training_state() -> State:
    """Weights, moments and a schedule, some 24 MB: three chunks."""
    generator = torch.Generator().manual_seed(7)
    return {
        "model": {
            f"layer{number}": torch.randn(512, 1024, generator=generator).to(torch.bfloat16) for number in range(8)
        },
        "optimizer": {
            "exp_avg": torch.randn(1024, 1024, generator=generator),
            "exp_avg_sq": torch.rand(2048, 1024, generator=generator),
            "step": torch.tensor(17),
        },
        "schedule": {"lr": [1e-3, 1e-4], "epoch": 3},
    }


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("by_object", [False, True], ids=["path", "file-object"])
def test_a_saved_checkpoint_has_the_same_bytes_as_on_a_native_directory(
    pair: Pair, zipped: bool, by_object: bool
) -> None:
    state = training_state()
    for directory in pair:
        if by_object:
            with open(directory / "ck.pt", "wb") as file:
                torch.save(state, file, _use_new_zipfile_serialization=zipped)
        else:
            torch.save(state, directory / "ck.pt", _use_new_zipfile_serialization=zipped)
    if zipped:  # the legacy format holds addresses of storages
        assert (pair.mount / "ck.pt").read_bytes() == (pair.native / "ck.pt").read_bytes()
    assert_same(torch.load(pair.mount / "ck.pt", weights_only=True), state)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("mapped", [False, True], ids=["read", "mmap"])
def test_a_checkpoint_is_loaded_after_a_remount(mounted: MountedVolume, mapped: bool, weights_only: bool) -> None:
    state = training_state()
    torch.save(state, mounted.mountpoint / "ck.pt")
    mounted.remount()
    assert_same(torch.load(mounted.mountpoint / "ck.pt", mmap=mapped, weights_only=weights_only), state)


def test_a_checkpoint_is_loaded_from_an_open_file(pair: Pair) -> None:
    state = training_state()
    torch.save(state, pair.mount / "ck.pt")
    with open(pair.mount / "ck.pt", "rb") as file:
        assert_same(torch.load(file, weights_only=True), state)


def test_a_mapped_checkpoint_stays_whole_while_its_file_is_replaced(pair: Pair) -> None:
    state = training_state()
    torch.save(state, pair.mount / "ck.pt")
    loaded = torch.load(pair.mount / "ck.pt", mmap=True, weights_only=True)
    torch.save({"other": torch.zeros(1000)}, pair.mount / "new.pt")
    (pair.mount / "new.pt").rename(pair.mount / "ck.pt")
    assert_same(loaded, state)
    assert torch.load(pair.mount / "ck.pt", weights_only=True).keys() == {"other"}


def test_overwriting_a_checkpoint_in_place_leaves_the_new_one(pair: Pair) -> None:
    torch.save(training_state(), pair.mount / "latest.pt")
    small = {"w": torch.arange(10)}
    torch.save(small, pair.mount / "latest.pt")
    assert_same(torch.load(pair.mount / "latest.pt", weights_only=True), small)


def run_ranks(directory: Path, *steps: str) -> None:
    """Run the checkpointing program on the loopback interface; a step reads ``save:4``, and the number is that of processes."""
    environment = dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    command = [sys.executable, CHECKPOINTING, directory, *steps]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["save", "async_save"])
def test_a_sharded_checkpoint_of_four_processes_is_loaded_by_two(pair: Pair, way: str) -> None:
    """It is saved over itself too, which unlinks the metadata file and renames another into its place."""
    run_ranks(pair.mount / "step-1", f"{way}:4", f"{way}:4", "load:2", "load:4")
    assert (pair.mount / "step-1" / ".metadata").stat().st_size > 0
    assert len(list((pair.mount / "step-1").glob("*.distcp"))) == 4
