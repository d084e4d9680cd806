"""Opening a volume again after a run that did not end cleanly."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from ckptfs.errors import DamagedData
from ckptfs.meta import names, runs
from ckptfs.meta.database import Database
from ckptfs.meta.schema import ROOT_INO
from ckptfs.volume.format import METADATA_NAME
from ckptfs.volume.volume import open_volume
from tests.unit.volume.opened import make


async def test_after_a_crash_a_damaged_database_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    directory = make(tmp_path)
    path = directory / METADATA_NAME
    database = Database.open(path)
    database.transact(runs.begin, None, 1)
    database.transact(lambda connection: [names.add(connection, ROOT_INO, b"name %d" % n, 7) for n in range(2000)])
    database.close()
    whole = path.read_bytes()
    third = len(whole) // 3 // 4096 * 4096
    damaged = whole[:third] + b"\xa5" * third + whole[2 * third :]
    path.write_bytes(damaged)
    with pytest.raises(DamagedData, match="nothing was changed"):
        async with open_volume(directory):
            await trio.lowlevel.checkpoint()
    assert path.read_bytes() == damaged
