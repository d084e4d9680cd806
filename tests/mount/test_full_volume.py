"""A volume whose device is full: the write that does not fit says so, and the volume can be cleaned up and used on."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.support.mounted import MountedVolume, run, wait_until
from tests.support.system import errno_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.root

DEVICE_BYTES = 72 << 20
PIECE = bytes(range(256)) * 4096


@pytest.fixture
def small(tmp_path: Path) -> Iterator[MountedVolume]:
    """A mounted volume, metadata and stripe, on an ext4 of 72 MiB, of which some 40 MiB are for data."""
    device, image = tmp_path / "device", tmp_path / "ext4.img"
    device.mkdir()
    with open(image, "wb") as file:
        file.truncate(DEVICE_BYTES)
    run(["mkfs.ext4", "-q", "-F", "-m", "0", image])
    run(["mount", "-o", "loop", image, device])
    made = MountedVolume(device, stripe_count=1)
    try:
        made.mkfs()
        made.mount()
        yield made
    finally:
        made.dispose()
        # A daemon that was just released from its lock may still be on its way out. The loop device goes with the mount.
        wait_until(
            lambda: subprocess.run(["umount", device], check=False, timeout=60).returncode == 0, f"{device} to be free"
        )


def fill(path: Path, flags: int = 0) -> tuple[int, int]:
    """Write ``path`` until the device is full; returns the bytes written and the error number."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | flags)
    written = 0
    try:
        while written < 2 * DEVICE_BYTES:
            written += os.write(descriptor, PIECE)
    except OSError as why:
        return written, why.errno or 0
    finally:
        os.close(descriptor)  # raises nothing: the write has said it
    return written, 0


def test_the_write_that_does_not_fit_fails_and_earlier_bytes_are_read(small: MountedVolume) -> None:
    """S-enospc."""
    written, number = fill(small.mountpoint / "fill")
    assert number == errno.ENOSPC
    assert written > 20 << 20
    content = (small.mountpoint / "fill").read_bytes()
    assert len(content) >= written
    assert content == (PIECE * (len(content) // len(PIECE) + 1))[: len(content)]
    assert os.statvfs(small.mountpoint).f_bavail * 4096 < 2 << 20
    assert "ENOSPC" in small.log()


def test_names_are_changed_on_a_full_volume(small: MountedVolume) -> None:
    """S-full."""
    root = small.mountpoint
    (root / "step-1").mkdir()
    (root / "step-1" / "w").write_bytes(PIECE)
    assert fill(root / "fill")[1] == errno.ENOSPC
    (root / "step-2").mkdir()
    (root / "latest").symlink_to("step-1")
    (root / "pointer.tmp").write_text("step-1")
    (root / "pointer.tmp").rename(root / "pointer")
    (root / "step-2").rename(root / "step-3")
    os.link(root / "step-1" / "w", root / "kept")
    os.setxattr(root / "kept", "user.step", b"1")
    directory = os.open(root, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    shutil.rmtree(root / "step-1")
    assert (root / "pointer").read_text() == "step-1"
    assert (root / "kept").read_bytes() == PIECE
    assert sorted(os.listdir(root)) == ["fill", "kept", "latest", "pointer", "step-3"]


def test_freed_space_is_usable_at_once(small: MountedVolume) -> None:
    """S-space-back, S-statfs."""
    free = os.statvfs(small.mountpoint).f_bavail
    for _ in range(3):
        written, number = fill(small.mountpoint / "fill")
        assert number == errno.ENOSPC
        assert written > 20 << 20
        (small.mountpoint / "fill").unlink()
        wait_until(lambda: os.statvfs(small.mountpoint).f_bavail > free * 0.8, "the space to be shown as free", 5)
        (small.mountpoint / "after").write_bytes(PIECE * 10)
        assert (small.mountpoint / "after").read_bytes() == PIECE * 10
        (small.mountpoint / "after").unlink()


def test_a_checkpoint_that_is_overwritten_again_and_again_always_fits(small: MountedVolume) -> None:
    """What was overwritten is kept for a while, and must not cost a later save its space."""
    for step in range(8):
        content = bytes([step]) * (14 << 20)
        (small.mountpoint / "latest.pt").write_bytes(content)
        assert (small.mountpoint / "latest.pt").read_bytes() == content


def test_tiny_files_are_written_on_a_full_volume(small: MountedVolume) -> None:
    """S-reserve."""
    assert fill(small.mountpoint / "fill")[1] == errno.ENOSPC
    for number in range(20):
        (small.mountpoint / f"marker{number}").write_text(f"step-{number}")
    for number in range(20):
        assert (small.mountpoint / f"marker{number}").read_text() == f"step-{number}"


def test_a_file_is_cut_and_rewritten_on_a_full_volume(small: MountedVolume) -> None:
    """S-full."""
    written, number = fill(small.mountpoint / "fill")
    assert number == errno.ENOSPC
    os.truncate(small.mountpoint / "fill", 1000)
    assert (small.mountpoint / "fill").read_bytes() == PIECE[:1000]
    assert fill(small.mountpoint / "other")[0] > written - (4 << 20)


def test_a_sparse_file_larger_than_the_device_is_no_problem_until_it_is_filled(small: MountedVolume) -> None:
    with open(small.mountpoint / "sparse", "wb", buffering=0) as file:
        file.truncate(1 << 34)
        file.seek(1 << 33)
        file.write(b"here")
    with open(small.mountpoint / "sparse", "rb") as file:
        file.seek((1 << 33) - 2)
        assert file.read(7) == b"\0\0here\0"


def test_the_first_error_of_a_save_is_not_at_close(small: MountedVolume) -> None:
    """S-enospc: safetensors ignores what close says: ftruncate to the full size, write, rename, close."""
    temporary = small.mountpoint / ".tmp"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(descriptor, 60 << 20)

    def write_and_rename() -> None:
        for _ in range(60):
            os.write(descriptor, PIECE)
        temporary.rename(small.mountpoint / "model")

    assert errno_of(write_and_rename) == errno.ENOSPC
    os.close(descriptor)
    assert not (small.mountpoint / "model").exists()


def test_a_full_volume_is_unmounted_and_mounted_again(small: MountedVolume) -> None:
    written, number = fill(small.mountpoint / "fill")
    assert number == errno.ENOSPC
    small.remount()
    assert (small.mountpoint / "fill").stat().st_size >= written
    (small.mountpoint / "fill").unlink()
    (small.mountpoint / "after").write_bytes(PIECE * 20)
    assert (small.mountpoint / "after").read_bytes() == PIECE * 20
