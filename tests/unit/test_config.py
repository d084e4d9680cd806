"""volume.toml: what is read, what is refused and how clearly, and that what mkfs writes is read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptfs.config import (
    SpaceSection,
    StripeSection,
    VolumeConfig,
    VolumeSection,
    load,
    parse,
    render_default,
)
from ckptfs.errors import ConfigError, NotAVolume

DIRECTORY = Path("/volumes/one")

COMPLETE = """\
[volume]
id = "v"
chunk_size = "1MiB"
width = 2

[[stripe]]
path = "stripe0"
id = "a"
reserve = 1048576

[[stripe]]
path = "/nvme1"
id = "b"

[space]
undelete_window = "2h"
"""


def test_sizes_and_durations_are_text_or_numbers_and_relative_stripes_lie_in_the_volume_directory() -> None:
    assert parse(COMPLETE, DIRECTORY) == VolumeConfig(
        VolumeSection("v", 1 << 20, 2),
        (StripeSection(Path("/volumes/one/stripe0"), "a", 1 << 20), StripeSection(Path("/nvme1"), "b")),
        SpaceSection(7200.0),
    )


@pytest.mark.parametrize("reserve_bytes", [None, 0, 5 << 20, 12345])
@pytest.mark.parametrize("window_s", [3600.0, 90.0, 0.0, 86400.0 + 3600.0 + 60.0, 0.5, 3661.0])
def test_what_mkfs_writes_is_read_back_as_it_was(reserve_bytes: int | None, window_s: float) -> None:
    config = VolumeConfig(
        VolumeSection('an "id"', 64 << 10, "auto"),
        (StripeSection(DIRECTORY / "stripe0", "a", reserve_bytes), StripeSection(Path('/a "path" of\nmine'), "b")),
        SpaceSection(window_s),
    )
    assert parse(render_default(config, DIRECTORY), DIRECTORY) == config


def test_a_stripe_in_the_volume_directory_is_written_relative_so_the_volume_can_be_moved() -> None:
    config = VolumeConfig(VolumeSection("v"), (StripeSection(DIRECTORY / "stripe0", "a"),))
    assert 'path = "stripe0"' in render_default(config, DIRECTORY)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("chunk_size", "chunksize", "line 3: there is no 'chunksize' in [volume]; did you mean 'chunk_size'?"),
        ('id = "b"', 'id = "b"\nreserv = 1', "line 14: there is no 'reserv' in [stripe]; did you mean 'reserve'?"),
        ("[space]", "[spaces]", "line 15: there is no section [spaces]; did you mean 'space'?"),
        ("[space]", "[zzz]", "there is: volume, stripe, space"),
        ('"1MiB"', '"1ziB"', "line 3: chunk_size: '1ziB' is not a size"),
        ('"1MiB"', "true", "line 3: chunk_size"),
        ('"2h"', '"2 moons"', "undelete_window: '2 moons' is not a duration"),
        ('"2h"', "-1", "cannot be negative"),
        ('"1MiB"', "3000000", "must be a power of two from 64.0 KiB to 256.0 MiB"),
        ('"1MiB"', '"1GiB"', "must be a power of two"),
        ('"1MiB"', '"32KiB"', "must be a power of two"),
        ("width = 2", "width = 3", "a width of 3 is not possible with 2 stripe(s)"),
        ("width = 2", "width = 0", "a width of 0 is not possible"),
        ("width = 2", 'width = "wide"', "line 4: width is 'wide'; it must be"),
        ('id = "b"', "", "missing required field `id` - at `stripe[1]`"),
        ('id = "b"', 'id = "a"', "two stripes have the id a"),
        ('"/nvme1"', '"/volumes/one/stripe0"', "two stripes have the path"),
        ('path = "/nvme1"', "path = 3", "stripe[1].path"),
        ('id = "v"', 'id = ""', "[volume] id is empty"),
        ("[volume]", "[volume", "not valid TOML"),
    ],
)
def test_a_mistake_is_refused_with_its_place_and_the_way_out(old: str, new: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(COMPLETE.replace(old, new, 1), DIRECTORY)
    assert "/volumes/one/volume.toml" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize("text", ["volume = 3", "stripe = 3", "stripe = [3]", "space = []", "[[volume]]", ""])
def test_a_file_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse(text, DIRECTORY)


def test_a_directory_without_volume_toml_is_no_volume(tmp_path: Path) -> None:
    with pytest.raises(NotAVolume, match="ckptfs mkfs"):
        load(tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "volume.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path)
