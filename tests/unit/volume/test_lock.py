"""One process serves a volume, and a second one is told which."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptfs.errors import VolumeInUse
from ckptfs.volume.lock import Holder, VolumeLock, note_mountpoint, read_holder, stripe_locks


def test_nobody_holds_a_fresh_volume(tmp_path: Path) -> None:
    assert read_holder(tmp_path) is None
    assert read_holder(tmp_path / "gone") is None


def test_a_second_holder_is_refused_with_process_and_mountpoint(tmp_path: Path) -> None:
    with VolumeLock.acquire(tmp_path):
        note_mountpoint(tmp_path, "/mnt/checkpoints")
        with pytest.raises(VolumeInUse, match=rf"process {os.getpid()}, which serves it at /mnt/checkpoints"):
            VolumeLock.acquire(tmp_path)


def test_asking_who_holds_it_does_not_take_it(tmp_path: Path) -> None:
    with VolumeLock.acquire(tmp_path):
        assert read_holder(tmp_path) == Holder(os.getpid(), "")
        note_mountpoint(tmp_path, "/a longer mountpoint\nwith a newline")
        note_mountpoint(tmp_path, "/m")
        assert read_holder(tmp_path) == Holder(os.getpid(), "/m")
    assert read_holder(tmp_path) is None


def test_a_released_lock_can_be_taken_again_and_release_may_be_repeated(tmp_path: Path) -> None:
    lock = VolumeLock.acquire(tmp_path)
    lock.release()
    lock.release()
    with VolumeLock.acquire(tmp_path):
        assert read_holder(tmp_path) is not None


def test_the_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from ckptfs.volume.lock import VolumeLock\n"
        "lock = VolumeLock.acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert read_holder(tmp_path) == Holder(process.pid, "")
        with pytest.raises(VolumeInUse, match=f"process {process.pid}"):
            VolumeLock.acquire(tmp_path)
        process.kill()
        process.wait()
        with VolumeLock.acquire(tmp_path):
            pass


def test_a_lock_file_of_somebody_who_wrote_nonsense_is_still_a_lock(tmp_path: Path) -> None:
    with VolumeLock.acquire(tmp_path):
        (tmp_path / "lock").write_bytes(b"\xff\xfe nonsense")
        assert read_holder(tmp_path) == Holder(0, "")


def test_a_stripe_in_use_by_a_copy_of_the_volume_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "nvme0" / "ckptfs-stripe.json"
    file.parent.mkdir()
    file.touch()
    with stripe_locks([file]), pytest.raises(VolumeInUse, match=r"nvme0 is in use .* copy"), stripe_locks([file]):
        pass
    with stripe_locks([file]):
        pass
