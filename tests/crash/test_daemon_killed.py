"""The daemon dies at each named point; what the next mount finds is what was acknowledged."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckptfs import faults
from tests.support.mounted import wait_until
from tests.support.power import DIED_AT_A_FAULT_POINT, Node
from tests.support.story import Holds, Story, StoryEndedError, Tree

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]

ON_THE_WRITE_PATH = [
    point for point in faults.POINTS if not point.startswith(("recovery.", "reclaim.")) and point != "unmount.sealed"
]
LATER_HIT = {"lane.read": 2, "generation.replaced": 2, "seal.begin": 3, "seal.lanes-flushed": 3, "seal.committed": 3}
"""The hit that triggers the second time round, where the scenario has fewer than five."""
ELSEWHERE = {
    "unmount.sealed",
    "recovery.before-commit",
    "recovery.committed",
    "reclaim.dropping",
    "reclaim.barrier",
    "reclaim.lanes-gone",
}


def content(name: str, size: int) -> bytes:
    """Bytes that belong to one file only."""
    return random.Random(name).randbytes(size)


LATEST, EDITED = content("latest 1", 3_000_000), content("edited", 2_500_000)


def set_up(node: Node) -> Tree:
    """Sealed files from an earlier, clean run."""
    node.mount()
    story = Story(node.mountpoint)
    story.write_new("latest.pt", LATEST)
    story.write_new("edited", EDITED)
    story.write_new("loser", content("loser", 1000))
    story.write_new("doomed", content("doomed", 1_200_000))
    node.umount()
    return story.tree


def save_checkpoints(story: Story) -> None:
    """What trainers do, in steps."""
    story.read("edited")
    for step in ("step1", "step2"):
        story.mkdir(step)
        story.write_new(f"{step}/fsynced", content(f"{step} fsynced", 2_200_000), fsync=True)
        story.write_new(f"{step}/closed", content(f"{step} closed", 1_500_000))
        story.overwrite("latest.pt", content(f"latest {step}", 2_800_000), fsync=step == "step2")
        story.write_new(f"{step}/tmp", content(f"{step} tmp", 700_000))
        story.rename(f"{step}/tmp", "loser")
        story.edit("edited", 1_000_000, content(f"edit {step}", 100_000))
        story.symlink(step, f"{step}/link")
        if step == "step2":
            story.unlink("doomed")
            story.unlink("step1/closed")


def die(node: Node, story: Story, fault: str) -> None:
    """Mount and go on with the story until the daemon dies of ``fault``, be it while it mounts."""
    status = node.try_mount(fault=fault)
    if status is None:
        with pytest.raises(StoryEndedError):
            save_checkpoints(story)
        status = node.wait_ended()
    assert status == DIED_AT_A_FAULT_POINT, node.log()


@pytest.mark.parametrize(
    ("point", "hit"), [(point, hit) for point in ON_THE_WRITE_PATH for hit in (1, LATER_HIT.get(point, 5))]
)
def test_what_was_acknowledged_is_there_after_the_daemon_died_at(node: Node, point: str, hit: int) -> None:
    """P-daemon-killed, P-rename-atomic, P-fsync-file: no named point loses a name, a closed file or the last good latest.pt."""
    story = Story(node.mountpoint, set_up(node))
    die(node, story, f"{point}:{hit}")
    node.mount()
    story.check(f"killed at {point}")
    story.write_new("afterwards", content("afterwards", 1_100_000), fsync=True)
    node.remount()
    story.check("after a clean unmount")
    node.require_sound()
