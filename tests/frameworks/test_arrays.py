"""safetensors, NumPy and h5py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import Pair
from tests.support.mounted import MountedVolume

np = pytest.importorskip("numpy")

Arrays = dict[str, Any]


def weights(seed: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        "embed": random.standard_normal((2048, 1024)).astype(np.float32),
        "norm": random.standard_normal(333).astype(np.float16),
        "ids": random.integers(0, 1 << 40, 100_001),
    }


def assert_same(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        assert np.array_equal(array, other[name])


def test_safetensors_saves_the_same_file_and_loads_it(pair: Pair) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    for directory in pair:
        safetensors.save_file(weights(1), directory / "model.safetensors", {"format": "pt"})
    mounted, native = (directory / "model.safetensors" for directory in (pair.mount, pair.native))
    assert mounted.read_bytes() == native.read_bytes()
    assert (mounted.stat().st_mode, mounted.stat().st_size) == (native.stat().st_mode, native.stat().st_size)
    assert list(pair.mount.iterdir()) == [mounted]
    assert_same(safetensors.load_file(mounted), weights(1))


def test_safetensors_are_replaced_while_they_are_mapped(pair: Pair) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    from safetensors import safe_open

    path = pair.mount / "model.safetensors"
    safetensors.save_file(weights(1), path)
    with safe_open(path, framework="numpy") as mapped:
        safetensors.save_file(weights(2), path)
        assert_same({name: mapped.get_tensor(name) for name in mapped.keys()}, weights(1))  # noqa: SIM118
    assert_same(safetensors.load_file(path), weights(2))


def test_safetensors_loaded_and_saved_to_the_same_path(pair: Pair) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    torch = pytest.importorskip("torch")
    path = pair.mount / "model.safetensors"
    safetensors.save_file({"w": torch.arange(3_000_000)}, path)
    loaded = safetensors.load_file(path)
    loaded["w"] += 1
    safetensors.save_file(loaded, path)
    assert torch.equal(safetensors.load_file(path)["w"], torch.arange(1, 3_000_001))


def test_numpy_saves_the_same_files(pair: Pair) -> None:
    arrays = weights(3)
    for directory in pair:
        np.save(directory / "a.npy", arrays["embed"])
        np.savez(directory / "a.npz", **arrays)
        np.savez_compressed(directory / "c.npz", **arrays)
        arrays["ids"].tofile(directory / "a.bin")
        with open(directory / "two.npy", "wb") as file:
            np.save(file, arrays["norm"])
            np.save(file, arrays["ids"])
    assert (pair.mount / "a.npy").read_bytes() == (pair.native / "a.npy").read_bytes()
    assert (pair.mount / "a.bin").read_bytes() == (pair.native / "a.bin").read_bytes()
    assert (pair.mount / "two.npy").read_bytes() == (pair.native / "two.npy").read_bytes()
    for name in ("a.npz", "c.npz"):
        assert (pair.mount / name).stat().st_size == (pair.native / name).stat().st_size
        with np.load(pair.mount / name) as loaded:
            assert_same(dict(loaded), arrays)
    assert np.array_equal(np.fromfile(pair.mount / "a.bin", dtype=np.int64), arrays["ids"])


@pytest.mark.parametrize("mode", ["r", "c"])
def test_numpy_maps_a_saved_array(pair: Pair, mode: str) -> None:
    array = weights(4)["embed"]
    np.save(pair.mount / "a.npy", array)
    mapped = np.load(pair.mount / "a.npy", mmap_mode=mode)
    assert np.array_equal(mapped, array)


def test_a_memmap_is_made_written_and_edited(mounted: MountedVolume) -> None:
    path = mounted.mountpoint / "m.dat"
    expected = np.arange(3_000_000, dtype=np.float32)
    made = np.memmap(path, dtype=np.float32, mode="w+", shape=(3_000_000,))
    made[:] = expected
    made.flush()
    edited = np.memmap(path, dtype=np.float32, mode="r+")
    edited[1000:2000] = -1
    expected[1000:2000] = -1
    edited.flush()
    assert np.array_equal(made, expected)  # both map the same pages
    del made, edited
    program = "import numpy, sys; print(numpy.memmap(sys.argv[1], dtype=numpy.float32, mode='r')[998:1001].tolist())"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[998.0, 999.0, -1.0]\n"
    mounted.remount()
    assert np.array_equal(np.fromfile(path, dtype=np.float32), expected)


def test_a_saved_array_is_edited_through_a_map(pair: Pair) -> None:
    for directory in pair:
        np.save(directory / "a.npy", np.zeros((1000, 1000)))
        mapped = np.load(directory / "a.npy", mmap_mode="r+")
        mapped[500] = 7
        del mapped
    assert (pair.mount / "a.npy").read_bytes() == (pair.native / "a.npy").read_bytes()


def _write_h5(path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    random = np.random.default_rng(5)
    with h5py.File(path, "w", track_order=True) as file:
        for number in range(4):
            file.create_dataset(f"layer{number}/w", data=random.standard_normal((300, 700)))
        file.attrs["step"] = 1
    with h5py.File(path, "a") as file:
        file["layer2/w"][10:20] = 0
        file.create_dataset("chunked", data=random.integers(0, 9, (500, 500)), chunks=(50, 50), compression="gzip")
        file.attrs["step"] = 2
        del file["layer3/w"]
    with h5py.File(path, "r+") as file:
        file["chunked"][0:10, 0:10] = 99


def test_h5py_creates_and_appends_the_same_content(pair: Pair) -> None:
    h5py = pytest.importorskip("h5py")
    for directory in pair:
        _write_h5(directory / "model.h5")
    with h5py.File(pair.mount / "model.h5") as mounted, h5py.File(pair.native / "model.h5") as native:
        assert mounted.attrs["step"] == native.attrs["step"] == 2
        for name in ("layer0/w", "layer1/w", "layer2/w", "chunked"):
            assert np.array_equal(mounted[name][:], native[name][:])
        assert "w" not in mounted["layer3"]
    assert (pair.mount / "model.h5").stat().st_size == (pair.native / "model.h5").stat().st_size


def test_h5py_refuses_a_file_that_another_process_writes(pair: Pair) -> None:
    h5py = pytest.importorskip("h5py")
    program = "import h5py, sys\ntry: h5py.File(sys.argv[1], 'r+')\nexcept OSError: print('locked')"
    with h5py.File(pair.mount / "f.h5", "w") as file:
        file.create_dataset("x", data=np.arange(10))
        command = [sys.executable, "-c", program, str(pair.mount / "f.h5")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "locked\n"
