"""Changes of names that a mount cannot bring about in reasonable time."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

import pytest

from ckptfs.errors import TooManyLinks
from ckptfs.meta import inodes
from ckptfs.meta.database import Database
from ckptfs.meta.schema import ROOT_INO
from ckptfs.volume import namespace
from ckptfs.volume.attributes import Caller

if TYPE_CHECKING:
    from pathlib import Path


def test_an_inode_with_the_most_links_gets_no_other(tmp_path: Path) -> None:
    """S-hard-links."""
    database = Database.open(tmp_path / "metadata.db")
    try:
        now_ns = time.time_ns()
        caller = Caller(os.getuid(), os.getgid())
        row, _ = database.transact(namespace.create, ROOT_INO, b"a", stat.S_IFREG | 0o644, caller, now_ns)
        database.transact(inodes.set_links, row.ino, namespace.LINK_MAX, now_ns)
        with pytest.raises(TooManyLinks):
            database.transact(namespace.link, row.ino, ROOT_INO, b"b", now_ns)
    finally:
        database.close()
