"""A path means a volume, mounted or not, and a path in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptfs.admin import locate as module
from ckptfs.admin.locate import Location, locate
from ckptfs.errors import NotAVolume
from ckptfs.mount.table import MountEntry
from ckptfs.volume.lock import VolumeLock, note_mountpoint


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "volume.toml").touch()
    return tmp_path / "v"


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()

    def holding(path: Path) -> MountEntry | None:
        return MountEntry(mountpoint, tmp_path / "v", 0, 1) if path.is_relative_to(mountpoint) else None

    monkeypatch.setattr(module, "mount_holding", holding)
    return mountpoint


def test_a_path_in_a_mount_means_the_mounted_volume_whether_it_exists_or_not(volume: Path, mounted: Path) -> None:
    assert locate(mounted / "run" / "gone.pt") == Location(volume, b"run/gone.pt")
    assert locate(mounted) == Location(volume, b"")


def test_a_link_into_a_mount_is_followed(volume: Path, mounted: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(mounted / "run")
    assert locate(tmp_path / "latest" / "a.pt") == Location(volume, b"run/a.pt")


def test_a_volume_directory_means_its_root_and_paths_below_it_its_files(volume: Path) -> None:
    assert locate(volume) == Location(volume, b"")
    assert locate(volume / "run" / "latest.pt") == Location(volume, b"run/latest.pt")


def test_a_path_of_no_volume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAVolume, match="neither in a mounted ckptfs volume"):
        locate(tmp_path)


def test_a_mount_whose_source_was_renamed_has_no_known_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "mount_holding", lambda _: MountEntry(tmp_path, None, 0, 1))
    with pytest.raises(NotAVolume, match="fsname"):
        locate(tmp_path)


def test_a_volume_is_served_when_its_lock_names_a_mountpoint(volume: Path) -> None:
    location = locate(volume)
    assert not location.is_served
    with VolumeLock.acquire(volume):
        assert not location.is_served
        note_mountpoint(volume, "/mnt")
        assert location.is_served
