"""A volume whose past is written by hand: the metadata changes of an open volume, one by one, without one being open.

It makes the commits that ``live.py`` and ``seal.py`` make, in their order, with the real lanes, and can then lose power: the
metadata keeps any prefix of the commits since the last barrier, and a lane keeps what was flushed, or more.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ckptfs.image.files import lane_path
from ckptfs.image.image import Image
from ckptfs.meta import generations, inodes, names, removals, runs
from ckptfs.meta.database import Database
from ckptfs.meta.generations import GenerationRow
from ckptfs.meta.inodes import InodeRow
from ckptfs.meta.schema import ROOT_INO, State
from ckptfs.volume import namespace, recovery
from ckptfs.volume.attributes import Caller, RenameMode
from ckptfs.volume.format import METADATA_NAME, format_volume
from ckptfs.volume.recovery import RecoveryReport, layout_of

CHUNK_BYTES = 8
_CALLER = Caller(0, 0)


class Past:
    """See the module docstring. Paths are relative to the root."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "volume"
        self.stripes = [directory / "one", directory / "two"]
        format_volume(self.directory, self.stripes)
        self.database = Database.open(self.directory / METADATA_NAME)
        self.now_ns = 1_000_000_000_000
        self.flushed_lanes: dict[Path, bytes] = {}
        self._log = self.directory / f"{METADATA_NAME}-wal"
        self._log_sizes: list[int] = []
        self.do(runs.begin, "instance", self.now_ns)
        self.barrier()

    # What the tests see

    @property
    def commits_at_risk(self) -> int:
        """How many commits a loss of power could take."""
        return len(self._log_sizes) - 1

    def do(self, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """One transaction."""
        self.now_ns += 1_000_000_000
        result = self.database.transact(action, *args, **kwargs)
        self._log_sizes.append(self._log.stat().st_size if self._log.exists() else 0)
        return result

    def look(self, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.database.transact(action, *args, **kwargs)

    def inode(self, path: str) -> InodeRow | None:
        return self.look(names.resolve, path.encode())

    def ino(self, path: str) -> int:
        row = self.inode(path)
        assert row is not None, path
        return row.ino

    def generation(self, path: str) -> GenerationRow:
        row = self.look(generations.current, self.ino(path))
        assert row is not None
        return row

    def content(self, path: str) -> bytes | None:
        """The bytes at ``path``; None where nothing is."""
        row = self.inode(path)
        return None if row is None else self.content_of(self.generation(path))

    def content_of(self, row: GenerationRow) -> bytes:
        return b"" if row.image is None else bytes(self._image(row).read(0, row.size))

    def all_paths(self) -> list[str]:
        return sorted(
            self.look(names.path_of_name, entry.parent, entry.name).decode() for entry in self.look(names.everything)
        )

    # What programs do

    def mkdir(self, path: str) -> None:
        self.do(namespace.create, *self._split(path), stat.S_IFDIR | 0o755, _CALLER, self.now_ns)

    def create(self, path: str) -> None:
        self.do(namespace.create, *self._split(path), stat.S_IFREG | 0o644, _CALLER, self.now_ns)

    def symlink(self, path: str, target: bytes) -> None:
        self.do(namespace.create, *self._split(path), stat.S_IFLNK | 0o777, _CALLER, self.now_ns, target=target)

    def truncate_by_open(self, path: str) -> None:
        """O_TRUNC."""
        row = self.generation(path)
        if row.image is not None:
            self.do(namespace.replace_generation, row.ino, self.now_ns, damaged=False)

    def write(self, path: str, data: bytes, offset: int = 0) -> None:
        """A write that has landed and is not flushed."""
        row = self.generation(path)
        self.do(self._begin_landing, row)
        row = self.generation(path)
        self._image(row).write(offset, data)

    def flush(self, path: str) -> None:
        row = self.generation(path)
        self.do(generations.set_flushed, row.id, flushed=True, size=self._size(row))

    def save(self, path: str, data: bytes) -> None:
        """What torch.save does: open with O_TRUNC, write, close."""
        if self.inode(path) is None:
            self.create(path)
        else:
            self.truncate_by_open(path)
        self.write(path, data)
        self.flush(path)

    def unlink(self, path: str) -> None:
        self.do(namespace.unlink, *self._split(path), self.now_ns)

    def rmdir(self, path: str) -> None:
        self.do(namespace.rmdir, *self._split(path), self.now_ns)

    def rename(self, path: str, new_path: str, mode: RenameMode = RenameMode.REPLACE) -> None:
        self.do(namespace.rename, *self._split(path), *self._split(new_path), mode, self.now_ns)

    def link(self, path: str, new_path: str) -> None:
        self.do(namespace.link, self.ino(path), *self._split(new_path), self.now_ns)

    def fsync(self, path: str) -> None:
        row = self.generation(path)
        if row.image is None:
            parent, name = self._split(path)
            self.do(generations.acknowledge_empty, row.id, parent, name)
        else:
            self.seal(path)
        self.do(removals.acknowledge, winner=row.ino)
        self.barrier()

    def fsync_directory(self, path: str) -> None:
        directory = self.ino(path) if path else ROOT_INO
        for entry, row in self.look(names.page, directory, 0, 1000):
            if row.is_regular and self.look(generations.current, entry.ino).state is State.LANDING:
                self._seal(self.look(generations.current, entry.ino), flushed=True)
        self.do(removals.acknowledge, directory=directory)
        self.barrier()

    # What the volume does by itself

    def seal(self, path: str, *, flushed: bool = True) -> None:
        """``flushed=False``: by the clock, while the writer has it open."""
        self._seal(self.generation(path), flushed=flushed)

    def barrier(self) -> None:
        self.database.barrier()
        self._log_sizes = [self._log.stat().st_size]

    def seal_everything(self) -> None:
        for row in self.look(generations.landing):
            self._seal(row, flushed=True)
        self.barrier()

    # The crash

    def die(self) -> None:
        """The daemon is killed."""
        self._reopen(self._log.stat().st_size)

    def lose_power(self, commits: int | None = None, keep_lane: Callable[[Path], bool] = lambda _: False) -> None:
        """Keep ``commits`` of the commits at risk, by default all, and of each lane what was flushed, or all of it."""
        size = self._log_sizes[-1 if commits is None else commits]
        for stripe in self.stripes:
            for lane in (stripe / "images").iterdir():
                if keep_lane(lane):
                    continue
                if lane in self.flushed_lanes:
                    lane.write_bytes(self.flushed_lanes[lane])
                else:
                    lane.unlink()
        # What is there now has been read back from the device.
        lanes = [lane for stripe in self.stripes for lane in (stripe / "images").iterdir()]
        self.flushed_lanes = {lane: lane.read_bytes() for lane in lanes}
        self._reopen(size)

    def recover(self, *, same_instance: bool) -> RecoveryReport:
        return recovery.recover(self.database, self.stripes, same_instance, self.now_ns)

    def close(self) -> None:
        self.database.close()

    # Inside

    def _reopen(self, log_size: int) -> None:
        path = self.directory / METADATA_NAME
        kept = {file: file.read_bytes() for file in (path, self._log)}
        self.database.close()
        for file in (path, self._log, path.with_name(path.name + "-shm")):
            file.unlink(missing_ok=True)
        path.write_bytes(kept[path])
        self._log.write_bytes(kept[self._log][:log_size])
        self.database = Database.open(path)

    def _begin_landing(self, connection: Any, row: GenerationRow) -> None:
        if row.state is State.LANDING:
            generations.set_flushed(connection, row.id, flushed=False, size=row.size)
        else:
            generations.mark_dirty(connection, row.id)
        if row.image is None:
            generations.add_image(
                connection, row.id, chunk_size=CHUNK_BYTES, first=0, stripes=(0, 1), owner="node", boot_id="boot"
            )

    def _seal(self, row: GenerationRow, *, flushed: bool) -> None:
        size = self._size(row)
        lanes: list[int] = []
        if row.image is not None:
            image = self._image(row)
            image.sync()
            lanes = image.lane_sizes()
            for lane, number in enumerate(row.image.stripes):
                path = lane_path(self.stripes[number], row.image.id, lane)
                if path.exists():
                    self.flushed_lanes[path] = path.read_bytes()
        self.do(self._commit_seal, row, size, lanes, flushed=flushed or row.flushed)

    def _commit_seal(self, connection: Any, row: GenerationRow, size: int, lanes: list[int], *, flushed: bool) -> None:
        generations.set_sealed(connection, row.id, size=size, sealed_size=size, unsealed_since=None, flushed=flushed)
        generations.set_lane_sizes(connection, row.id, lanes)
        if flushed:
            removals.acknowledge_replacement(connection, row.id)

    def _size(self, row: GenerationRow) -> int:
        return row.size if row.image is None else max(row.size, recovery.size_in_lanes(row.image, self.stripes))

    def _image(self, row: GenerationRow) -> Image:
        assert row.image is not None
        return Image(row.image.id, layout_of(row.image), [self.stripes[number] for number in row.image.stripes])

    def _split(self, path: str) -> tuple[int, bytes]:
        above, _, name = path.rpartition("/")
        return (self.ino(above) if above else ROOT_INO), name.encode()


def dump(past: Past) -> dict[str, list[Any]]:
    """All that recovery may change, for comparison."""
    return {
        "inodes": past.look(inodes.everything),
        "names": past.look(names.everything),
        "generations": past.look(generations.everything),
        "log": past.look(removals.everything),
        "quarantine": past.look(removals.quarantined),
        "lanes": sorted(
            (lane.name, lane.read_bytes()) for stripe in past.stripes for lane in (stripe / "images").iterdir()
        ),
    }
