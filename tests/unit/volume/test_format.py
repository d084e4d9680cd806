"""mkfs makes what a mount accepts, and refuses before it changes anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.errors import ConfigError, RefusedError, StripeMismatch
from ckptfs.volume.format import format_volume, is_unformatted
from ckptfs.volume.stripes import open_stripes


def everything_below(path: Path) -> set[str]:
    return {str(found.relative_to(path)) for found in path.rglob("*")}


def test_a_volume_has_its_metadata_and_one_stripe_in_its_directory_by_default(tmp_path: Path) -> None:
    made = format_volume(tmp_path / "deep" / "volume")
    assert config.load(tmp_path / "deep" / "volume") == made
    assert [stripe.path for stripe in open_stripes(made)] == [tmp_path / "deep" / "volume" / "stripe0"]
    assert (tmp_path / "deep" / "volume" / "metadata.db").is_file()


def test_the_settings_given_are_those_of_the_volume(tmp_path: Path) -> None:
    format_volume(tmp_path / "v", [tmp_path / "a", tmp_path / "b"], chunk_size=1 << 20, width=2, reserve_bytes=7 << 20)
    made = config.load(tmp_path / "v")
    assert (made.volume.chunk_size, made.volume.width) == (1 << 20, 2)
    assert [stripe.reserve_bytes for stripe in open_stripes(made)] == [7 << 20, 7 << 20]


def test_the_bytes_of_a_volume_are_for_its_owner_only(tmp_path: Path) -> None:
    format_volume(tmp_path / "v", [tmp_path / "a"])
    for private in (tmp_path / "v", tmp_path / "a", tmp_path / "a" / "images"):
        assert private.stat().st_mode & 0o077 == 0


def test_a_fresh_filesystem_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "v" / "lost+found").mkdir(parents=True)
    assert is_unformatted(tmp_path / "v")
    format_volume(tmp_path / "v")
    assert not is_unformatted(tmp_path / "v")


def test_an_existing_volume_is_refused(tmp_path: Path) -> None:
    format_volume(tmp_path / "v")
    with pytest.raises(RefusedError, match="already is a ckptfs volume"):
        format_volume(tmp_path / "v")


def test_a_directory_with_something_in_it_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "thesis.tex").touch()
    with pytest.raises(RefusedError, match="not empty"):
        format_volume(tmp_path / "v", [tmp_path / "a"])
    assert everything_below(tmp_path) == {"v", "v/thesis.tex"}


def test_what_an_interrupted_mkfs_left_is_no_volume_and_is_named(tmp_path: Path) -> None:
    format_volume(tmp_path / "v")
    (tmp_path / "v" / "volume.toml").unlink()
    with pytest.raises(RefusedError, match="interrupted mkfs"):
        format_volume(tmp_path / "v")


@pytest.mark.parametrize(
    ("stripes", "said"),
    [
        (["a", "a/b"], "lie in each other"),
        (["a", "a"], "given twice"),
        (["missing/a"], "does not exist. Is the device mounted"),
        (["file"], "not a directory"),
        (["taken"], "already holds"),
    ],
)
def test_unusable_stripes_are_refused_before_anything_is_made(tmp_path: Path, stripes: list[str], said: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "images" / "cats").mkdir(parents=True)
    before = everything_below(tmp_path)
    with pytest.raises(RefusedError, match=said):
        format_volume(tmp_path / "v", [tmp_path / stripe for stripe in stripes])
    assert everything_below(tmp_path) == before


def test_a_stripe_of_another_volume_is_refused_by_its_name(tmp_path: Path) -> None:
    other = format_volume(tmp_path / "v", [tmp_path / "a"])
    with pytest.raises(StripeMismatch, match=f"stripe 0 of volume {other.volume.id}"):
        format_volume(tmp_path / "w", [tmp_path / "b", tmp_path / "a"])
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("wrong", [{"chunk_size": 3}, {"width": 2}, {"width": 0}])
def test_values_out_of_range_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        format_volume(tmp_path / "v", chunk_size=wrong.get("chunk_size", 1 << 20), width=wrong.get("width", "auto"))


def test_a_path_that_toml_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
        format_volume(tmp_path / os.fsdecode(b"\xff"))
