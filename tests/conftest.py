"""What every level of tests needs: marks by directory, tests for root only, and a look at what was left behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.support.mounted import MountedVolume

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile("long", max_examples=1000)  # for a night: tests/model takes its own measure from the name

MARKS_OF_DIRECTORY = {
    "model": ("mount",),
    "mount": ("mount",),
    "frameworks": ("mount", "frameworks"),
    "crash": ("mount", "crash"),
}
"""A directory says what its tests need of the machine, so that no test can forget to."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their directory, and skip those for root when somebody else runs them."""
    tests = config.rootpath / "tests"
    for item in items:
        level = item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""
        for mark in MARKS_OF_DIRECTORY.get(level, ()):
            item.add_marker(mark)
        if os.geteuid() != 0 and item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root"))


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[MountedVolume]:
    """A volume over two stripes, formatted and not mounted."""
    made = MountedVolume(tmp_path)
    try:
        made.mkfs()
        yield made
    finally:
        made.dispose()


@pytest.fixture
def mounted(volume: MountedVolume) -> MountedVolume:
    """The same, mounted."""
    volume.mount()
    return volume


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail the run when a test leaves a filesystem mounted below its temporary directory."""
    base = f"{tmp_path_factory.getbasetemp()}/"
    yield
    mountpoints = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    left = [mountpoint for mountpoint in mountpoints if mountpoint.startswith(base)]
    assert not left, f"left mounted by tests: {left}"
