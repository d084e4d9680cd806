"""One mount for all tests of this directory, and each behaviour tried on it and beside it on the native filesystem."""

from __future__ import annotations

import itertools
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.mounted import MountedVolume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedVolume]:
    """A mounted volume over two stripes for tests that do nothing to the mount itself; open to other users for root."""
    made = MountedVolume(tmp_path_factory.mktemp("shared"))
    try:
        made.mkfs()
        made.mount("allow_other" if os.geteuid() == 0 else "")
        yield made
    finally:
        made.dispose()


@pytest.fixture
def on_mount(shared: MountedVolume) -> Iterator[Path]:
    """A fresh directory on the mount."""
    directory = shared.mountpoint / f"test-{next(_numbers)}"
    directory.mkdir(mode=0o755)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=["native", "mount"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A fresh directory: on the native filesystem, which shows that the test is right, then on the mount."""
    if request.param == "mount":
        return request.getfixturevalue("on_mount")
    directory = tmp_path / "native"
    directory.mkdir(mode=0o755)
    return directory
