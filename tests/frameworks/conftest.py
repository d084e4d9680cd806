"""One mount for all programs, and beside it a native directory on which each of them does the same."""

from __future__ import annotations

import itertools
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.support.mounted import MountedVolume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two empty directories: one on the mount, one on the native filesystem."""

    mount: Path
    native: Path

    def __iter__(self) -> Iterator[Path]:
        return iter((self.native, self.mount))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedVolume]:
    """A mounted volume over two stripes."""
    made = MountedVolume(tmp_path_factory.mktemp("frameworks"))
    try:
        made.mkfs()
        made.mount("allow_other" if os.geteuid() == 0 else "")
        yield made
    finally:
        made.dispose()


@pytest.fixture
def pair(shared: MountedVolume, tmp_path: Path) -> Iterator[Pair]:
    """A fresh pair of directories."""
    made = Pair(shared.mountpoint / f"test-{next(_numbers)}", tmp_path / "native")
    for directory in made:
        directory.mkdir()
    yield made
    shutil.rmtree(made.mount, ignore_errors=True)
