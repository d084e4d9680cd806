"""Volumes for tests that kill and cut off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.power import Node, node_on_one_device, node_on_three_devices, plain_node

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A volume over two directories, formatted and not mounted."""
    yield from _disposed(plain_node(tmp_path))


@pytest.fixture
def powered(tmp_path: Path) -> Iterator[Node]:
    """A volume on one device that can lose power, formatted and not mounted."""
    yield from _disposed(node_on_one_device(tmp_path))


@pytest.fixture
def spread(tmp_path: Path) -> Iterator[Node]:
    """A volume on three devices: metadata and two stripes."""
    yield from _disposed(node_on_three_devices(tmp_path))


def _disposed(node: Node) -> Iterator[Node]:
    try:
        yield node
    finally:
        node.dispose()
