"""A database in a temporary directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ckptfs.meta.database import Database

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    made = Database.open(path)
    yield made
    made.close()
