"""An instance is one boot and the same mounts."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from ckptfs.volume import instance
from ckptfs.volume.instance import current_instance, unique_mount_id

knows_mounts = pytest.mark.skipif(unique_mount_id(Path("/")) is None, reason="needs Linux 6.8: STATX_MNT_ID_UNIQUE")


@knows_mounts
def test_the_instance_is_the_same_when_asked_again_and_has_the_boot_id(tmp_path: Path) -> None:
    first = current_instance([tmp_path, Path("/proc")])
    assert first is not None
    assert first == current_instance([tmp_path, Path("/proc")])
    assert first.startswith(Path("/proc/sys/kernel/random/boot_id").read_text().strip())


@knows_mounts
def test_paths_on_different_filesystems_have_different_mounts(tmp_path: Path) -> None:
    assert unique_mount_id(tmp_path) != unique_mount_id(Path("/proc"))


@knows_mounts
@pytest.mark.root
def test_a_filesystem_mounted_again_is_another_instance(tmp_path: Path) -> None:
    seen: list[str | None] = []
    for _ in range(2):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True)
        try:
            seen.append(current_instance([tmp_path]))
        finally:
            subprocess.run(["umount", tmp_path], check=True)
    assert seen[0] != seen[1]


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        current_instance([tmp_path / "gone"])


def test_a_kernel_that_cannot_tell_is_never_the_same_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "_STATX_MNT_ID_UNIQUE", 0x40000000)
    assert current_instance([tmp_path]) is None


def test_a_libc_without_statx_is_never_the_same_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_statx(*_: object, **__: object) -> object:
        return object()

    monkeypatch.setattr(ctypes, "CDLL", without_statx)
    assert current_instance([tmp_path]) is None
