"""A missing, swapped or foreign stripe is refused by name, and space is what is really there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ckptfs import config
from ckptfs.errors import NewerSchema, StripeMismatch
from ckptfs.volume.format import format_volume
from ckptfs.volume.stripes import IDENTITY_NAME, Stripe, default_reserve, open_stripes, space_of_all


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    format_volume(tmp_path / "v", [tmp_path / "a", tmp_path / "b"])
    return tmp_path / "v"


def refusal(volume: Path) -> str:
    with pytest.raises(StripeMismatch) as refused:
        open_stripes(config.load(volume))
    return str(refused.value)


def test_the_right_stripes_are_accepted_in_their_order(volume: Path, tmp_path: Path) -> None:
    stripes = open_stripes(config.load(volume))
    assert [(stripe.index, stripe.path) for stripe in stripes] == [(0, tmp_path / "a"), (1, tmp_path / "b")]
    assert all(stripe.report().healthy for stripe in stripes)


def test_a_stripe_that_is_not_there_is_missing(volume: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "b")
    assert f"stripe 1 ({tmp_path / 'b'}) is missing: the path does not exist" in refusal(volume)


def test_an_empty_directory_is_taken_for_a_device_that_did_not_come_up(volume: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "b").mkdir()
    assert f"stripe 1 ({tmp_path / 'b'}) is missing: the directory is empty. Mount the device" in refusal(volume)


def test_a_file_in_the_place_of_a_stripe_is_named(volume: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "b").touch()
    assert "is not a directory" in refusal(volume)


def test_swapped_stripes_are_named_with_where_the_right_one_is(volume: Path, tmp_path: Path) -> None:
    (tmp_path / "a").rename(tmp_path / "c")
    (tmp_path / "b").rename(tmp_path / "a")
    (tmp_path / "c").rename(tmp_path / "b")
    said = refusal(volume)
    assert f"stripe 0 ({tmp_path / 'a'}) is swapped: what is there is stripe 1" in said
    assert f"is at {tmp_path / 'b'}" in said


def test_a_stripe_of_another_volume_is_foreign(volume: Path, tmp_path: Path) -> None:
    other = format_volume(tmp_path / "w", [tmp_path / "c"])
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "c").rename(tmp_path / "a")
    said = refusal(volume)
    assert f"stripe 0 ({tmp_path / 'a'}) is foreign" in said
    assert other.volume.id in said


def test_reordered_sections_are_refused_because_metadata_counts_stripes(volume: Path) -> None:
    text = (volume / "volume.toml").read_text()
    head, first, rest = text.split("[[stripe]]")
    second, tail = rest.split("[space]")
    (volume / "volume.toml").write_text(f"{head}[[stripe]]{second}[[stripe]]{first}[space]{tail}")
    assert "out of order" in refusal(volume)


def test_a_stripe_without_its_images_is_refused(volume: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / "images").rmdir()
    assert "has no images/ directory" in refusal(volume)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"format": "x"}'])
def test_a_damaged_identity_is_refused(volume: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a" / IDENTITY_NAME).write_bytes(content)
    assert "is damaged" in refusal(volume)


def test_a_stripe_of_a_later_format_is_refused_as_newer(volume: Path, tmp_path: Path) -> None:
    identity = tmp_path / "a" / IDENTITY_NAME
    identity.write_text(identity.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(NewerSchema):
        open_stripes(config.load(volume))


@pytest.mark.parametrize(
    ("total", "reserve"), [(1 << 30, 21474836), (100 << 20, 16 << 20), (1 << 40, 4 << 30), (0, 16 << 20)]
)
def test_the_default_reserve_is_two_percent_within_bounds(total: int, reserve: int) -> None:
    assert default_reserve(total) == reserve


def test_the_reserve_is_not_available(tmp_path: Path) -> None:
    now = os.statvfs(tmp_path)
    total = now.f_blocks * now.f_frsize
    assert Stripe(0, tmp_path, reserve_bytes=total).space().available == 0
    assert Stripe(0, tmp_path, reserve_bytes=0).space().available > 0


def test_stripes_that_share_a_filesystem_are_counted_once(tmp_path: Path) -> None:
    stripes = [Stripe(0, tmp_path, 0), Stripe(1, tmp_path, 0)]
    assert space_of_all(stripes).total == stripes[0].space().total


def test_the_first_problem_is_reported_and_a_stripe_that_vanished_is_one(tmp_path: Path) -> None:
    stripe = Stripe(0, tmp_path / "gone", 0)
    report = stripe.report()
    assert not report.healthy
    stripe.note_problem("something later")
    assert "gone" in stripe.report().problem
