"""Random pasts, crashed at a random commit, recovered: what was promised holds, and recovery is complete and repeatable.

The model knows, for each name that an fsync acknowledged, which contents it may show from then on; an operation on the name
or its file widens that, or ends it.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from ckptfs.meta import generations, inodes, names, removals
from ckptfs.meta.schema import RemovalKind
from ckptfs.volume import fsck, reclaim
from ckptfs.volume.attributes import RenameMode
from tests.unit.volume.past import Past, dump

DIRECTORIES = ["", "d"]
PATHS = ["a", "b", "d/a"]
"""Few, so that operations meet."""

pytestmark = pytest.mark.slow

paths = st.sampled_from(PATHS)
contents = st.binary(min_size=1, max_size=40)


@dataclass
class Promise:
    """What an acknowledged name may show: one of ``contents``, but for the bytes at ``edited`` and beyond the end."""

    contents: set[bytes]
    edited: set[int] = field(default_factory=set[int])

    def allows(self, shown: bytes) -> bool:
        if shown in self.contents:
            return True
        return bool(self.edited) and any(self._is_edit(shown, content) for content in self.contents)

    def _is_edit(self, shown: bytes, content: bytes) -> bool:
        return len(shown) >= len(content) and all(
            shown[at] == byte for at, byte in enumerate(content) if at not in self.edited
        )


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ckptfs-histories-"))
        self.past = Past(self.directory)
        self.past.mkdir("d")
        self.past.barrier()
        self.promised: dict[str, Promise] = {}

    def teardown(self) -> None:
        try:
            self.past.lose_power()
            self._recover(same_instance=False)
        finally:
            self.past.close()
            shutil.rmtree(self.directory)

    # Programs

    @rule(path=paths, data=contents, finished=st.booleans())
    def save(self, path: str, data: bytes, *, finished: bool) -> None:
        if not self._parent_is_there(path):
            return
        if self.past.inode(path) is None:
            self.promised.pop(path, None)
            self.past.create(path)
        else:
            self.past.truncate_by_open(path)
        self.past.write(path, data)
        if finished:
            self.past.flush(path)
        for same in self._names_of_file(path):
            if same in self.promised:
                self.promised[same].contents.add(data)

    @rule(path=paths, data=contents)
    def save_durably(self, path: str, data: bytes) -> None:
        self.save(path, data, finished=True)
        self.fsync(path)

    @rule(path=paths)
    def create(self, path: str) -> None:
        if self._parent_is_there(path) and self.past.inode(path) is None:
            self.promised.pop(path, None)
            self.past.create(path)

    @rule(path=paths, data=contents, offset=st.integers(0, 40))
    def edit(self, path: str, data: bytes, offset: int) -> None:
        if not self._is_there(path):
            return
        self.past.write(path, data, offset)
        for same in self._names_of_file(path):
            if same in self.promised:
                self.promised[same].edited |= set(range(offset, offset + len(data)))

    @rule(path=paths)
    def flush(self, path: str) -> None:
        if self._is_there(path):
            self.past.flush(path)

    @rule(path=paths)
    def fsync(self, path: str) -> None:
        if self._is_there(path):
            self.past.fsync(path)
            self._promise(path)

    @rule(directory=st.sampled_from(DIRECTORIES))
    def fsync_directory(self, directory: str) -> None:
        if directory and not self._is_there(directory):
            return
        self.past.fsync_directory(directory)
        for path in PATHS:
            if path.rpartition("/")[0] == directory:
                if self._is_there(path):
                    self._promise(path)
                else:
                    self.promised.pop(path, None)

    @rule(path=paths)
    def unlink(self, path: str) -> None:
        if self._is_there(path):
            self.past.unlink(path)
            self.promised.pop(path, None)

    @rule(path=paths, new_path=paths, exchange=st.booleans())
    def rename(self, path: str, new_path: str, *, exchange: bool) -> None:
        if not self._is_there(path) or not self._parent_is_there(new_path):
            return
        if exchange and not self._is_there(new_path):
            return
        self.past.rename(path, new_path, RenameMode.EXCHANGE if exchange else RenameMode.REPLACE)
        self.promised.pop(path, None)
        self.promised.pop(new_path, None)

    @rule(path=paths, new_path=paths)
    def link(self, path: str, new_path: str) -> None:
        if not self._is_there(path) or not self._parent_is_there(new_path) or self.past.inode(new_path) is not None:
            return
        if self.past.generation(path).image is not None:
            self.past.link(path, new_path)
            self.promised.pop(new_path, None)

    @rule()
    def make_or_remove_directory(self, directory: str = "d") -> None:
        if not self._is_there(directory):
            self.past.mkdir(directory)
        elif self.past.look(names.is_empty, self.past.ino(directory)):
            self.past.rmdir(directory)

    # The volume by itself

    @rule(path=paths, closed=st.booleans())
    def seal(self, path: str, *, closed: bool) -> None:
        if self._is_there(path) and self.past.generation(path).image is not None:
            self.past.seal(path, flushed=closed)

    @rule()
    def seal_everything(self) -> None:
        self.past.seal_everything()

    @rule(wanted=st.none() | st.just(1 << 40))
    def free(self, wanted: int | None) -> None:
        past = self.past
        held = past.look(removals.held, past.look(generations.oldest_unsealed))
        past.do(reclaim.drop_some, now_ns=past.now_ns + 1, window_s=0.0, wanted_bytes=wanted, busy_inodes=set())
        reclaim.finish(past.database, past.stripes)
        past.barrier()
        left = {record.tick for record in past.look(removals.everything)}
        for record in held:
            # A replaced content goes with the last name of its file.
            assert record.tick in left or (
                record.kind is RemovalKind.REPLACED and past.look(inodes.find, record.ino) is None
            )

    # The crash

    @rule()
    def die(self) -> None:
        """P-daemon-killed."""
        whole = {
            path: self.past.content(path)
            for path in PATHS
            if self._is_there(path) and self.past.generation(path).flushed
        }
        self.past.die()
        self._recover(same_instance=True)
        for path, content in whole.items():
            assert self.past.content(path) == content

    @precondition(lambda self: self.past.commits_at_risk >= 0)
    @rule(data=st.data())
    def lose_power(self, data: Any) -> None:
        """P-power-lost, P-fsync-file, P-fsync-dir, P-quarantine."""
        commits = data.draw(st.integers(0, self.past.commits_at_risk), label="commits kept")
        kept: dict[Path, bool] = {
            lane: data.draw(st.booleans(), label=lane.name)
            for stripe in self.past.stripes
            for lane in sorted((stripe / "images").iterdir())
        }
        self.past.lose_power(commits, kept.__getitem__)
        self._recover(same_instance=False)

    def _recover(self, *, same_instance: bool) -> None:
        past = self.past
        before = {row.id for row in past.look(generations.everything) if row.size}
        past.recover(same_instance=same_instance)
        rows = past.look(generations.everything)
        assert before <= {row.id for row in rows}, "recovery threw a content away"
        checker = past.look(fsck._check_metadata, past.stripes, False, past.now_ns)
        assert checker.damage == []
        once = dump(past)
        past.recover(same_instance=same_instance)
        assert dump(past) == once
        for path, promise in self.promised.items():
            content = past.content(path)
            assert content is not None, f"{path} was acknowledged and is gone"
            assert promise.allows(content), f"{path} shows {content!r}, and was promised as {promise}"
        past.barrier()

    # The model

    def _promise(self, path: str) -> None:
        content = self.past.content(path)
        assert content is not None
        self.promised[path] = Promise({content})

    def _is_there(self, path: str) -> bool:
        return self.past.inode(path) is not None

    def _parent_is_there(self, path: str) -> bool:
        above = path.rpartition("/")[0]
        return not above or self._is_there(above)

    def _names_of_file(self, path: str) -> list[str]:
        ino = self.past.ino(path)
        return [other for other in PATHS if (row := self.past.inode(other)) is not None and row.ino == ino]


Histories.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestHistories = Histories.TestCase
