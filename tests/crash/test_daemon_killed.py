"""The daemon dies at each named point; what the next mount finds is what was acknowledged."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptfs import faults
from tests.support.mounted import run, wait_until
from tests.support.power import DIED_AT_A_FAULT_POINT, Node, node_on
from tests.support.story import Holds, Story, StoryEndedError, Tree

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]

ON_THE_WRITE_PATH = [
    point for point in faults.POINTS if not point.startswith(("recovery.", "reclaim.")) and point != "unmount.sealed"
]
LATER_HIT = {
    "lane.read": 2,
    "generation.replaced": 2,
    "seal.begin": 3,
    "seal.lanes-flushed": 3,
    "seal.committed": 3,
    "barrier.before": 4,
    "barrier.after": 4,
}
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


def save_checkpoints(story: Story, number: int) -> None:
    """What trainers do, in steps; ``number`` tells one time round from the next."""
    story.read("edited")
    for step in (f"{number}-step1", f"{number}-step2"):
        story.mkdir(step)
        story.write_new(f"{step}/fsynced", content(f"{step} fsynced", 2_200_000), fsync=True)
        story.write_new(f"{step}/closed", content(f"{step} closed", 1_500_000))
        story.overwrite("latest.pt", content(f"latest {step}", 2_800_000), fsync=step.endswith("2"))
        story.write_new(f"{step}/tmp", content(f"{step} tmp", 700_000))
        story.rename(f"{step}/tmp", "loser")
        story.edit("edited", 1_000_000, content(f"edit {step}", 100_000))
        story.symlink(step, f"{step}/link")
        story.unlink(f"{step}/closed")


def die(node: Node, story: Story, number: int, fault: str) -> None:
    """Mount and go on with the story until the daemon dies of ``fault``, be it while it mounts."""
    status = node.try_mount(fault=fault)
    if status is None:
        with pytest.raises(StoryEndedError):
            save_checkpoints(story, number)
        status = node.wait_ended()
    assert status == DIED_AT_A_FAULT_POINT, node.log()


@pytest.mark.parametrize("point", ON_THE_WRITE_PATH)
def test_what_was_acknowledged_is_there_after_the_daemon_died_at(node: Node, point: str) -> None:
    """P-daemon-killed, P-rename-atomic, P-fsync-file: no named point loses a name, a closed file or the last good latest.pt."""
    story = Story(node.mountpoint, set_up(node))
    for hit in (1, LATER_HIT.get(point, 5)):
        die(node, story, hit, f"{point}:{hit}")
        node.mount()
        story.check(f"killed at {point}, hit {hit}")
        story.write_new(f"after {hit}", content("after", 1_100_000), fsync=True)
        node.umount()
    node.require_sound()


def test_the_points_tried_here_are_all_there_are() -> None:
    assert ELSEWHERE | set(ON_THE_WRITE_PATH) == set(faults.POINTS)


@pytest.mark.parametrize("point", ["recovery.before-commit", "recovery.committed", "barrier.before", "barrier.after"])
@pytest.mark.parametrize("first", ["landing.dirty-marked:5", "generation.replaced", "names.committed:8"])
def test_a_recovery_that_dies_is_done_again(node: Node, first: str, point: str) -> None:
    """P-daemon-killed, also while it recovers from having been killed."""
    story = Story(node.mountpoint, set_up(node))
    die(node, story, 1, first)
    for _ in range(2):
        assert node.try_mount(fault=point) == DIED_AT_A_FAULT_POINT
    node.mount()
    story.check(f"recovery killed at {point}")
    node.require_sound()


def test_an_unmount_that_dies_when_everything_is_sealed_costs_nothing(node: Node) -> None:
    """P-daemon-killed: the clean mark is missing, and recovery finds nothing to do."""
    story = Story(node.mountpoint, set_up(node))
    node.mount(fault="unmount.sealed")
    save_checkpoints(story, 1)
    run(["umount", node.mountpoint])
    assert node.wait_ended() == DIED_AT_A_FAULT_POINT
    node.mount()
    story.check("killed while unmounting")
    assert not node.require_sound().quarantine


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Node]:
    """A volume with 40 MiB for data."""
    memory = tmp_path / "memory"
    memory.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", memory])
    node = node_on(tmp_path, tmp_path / "volume", [memory / "stripe"])
    try:
        yield node
    finally:
        node.dispose()
        run(["umount", memory])


@pytest.mark.parametrize("point", ["reclaim.dropping", "reclaim.barrier", "reclaim.lanes-gone"])
def test_freeing_that_dies_is_finished_by_the_next_mount(small: Node, point: str) -> None:
    """P-daemon-killed: space that was about to be free is free afterwards, and nothing else is gone."""
    small.mount(fault=point)
    story = Story(small.mountpoint)
    story.write_new("kept", content("kept", 5_000_000), fsync=True)
    story.write_new("removed", bytes(25_000_000), fsync=True)
    story.unlink("removed")
    with pytest.raises(StoryEndedError):
        story.write_new("needs its space", content("needs", 20_000_000))
    assert small.wait_ended() == DIED_AT_A_FAULT_POINT
    small.mount()
    story.check(f"killed at {point}")
    (lanes,) = [list((stripe / "images").iterdir()) for stripe in small.stripes]
    assert sum(lane.stat().st_blocks * 512 for lane in lanes) < 20_000_000 + 12_000_000, (
        "the removed file still takes space"
    )
    story.write_new("fits now", content("fits", 10_000_000), fsync=True)
    small.require_sound()


def errno_of(call: Callable[[], object]) -> int:
    """What a call fails with; 0 when it does not."""
    try:
        call()
    except OSError as why:
        return why.errno or -1
    return 0


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("point", ["lane.reserve", "lane.write", "lane.fsync"])
def test_a_device_error_is_told_before_close_and_costs_one_file(node: Node, point: str, error: int) -> None:
    """P-device-full: the errno comes from write, fsync or rename; other files and the mount live; a new generation works."""
    tree = set_up(node)
    node.mount(fault=f"{point}={errno.errorcode[error]}")
    bad, worse = node.mountpoint / "bad", node.mountpoint / "worse"
    descriptor = os.open(bad, os.O_WRONLY | os.O_CREAT, 0o644)
    told = {
        errno_of(lambda: os.write(descriptor, bytes(1_500_000))),
        errno_of(lambda: os.fsync(descriptor)),
        errno_of(lambda: os.rename(bad, worse)),
    }
    assert told - {0} == {error}
    assert errno_of(lambda: os.close(descriptor)) in {0, error}
    assert (node.mountpoint / "edited").read_bytes() == EDITED
    os.mkdir(node.mountpoint / "directory")
    os.unlink(node.mountpoint / "doomed")
    assert node.daemon_alive

    run(["umount", node.mountpoint])
    node.wait_ended()
    node.mount()
    for name in ("edited", "latest.pt", "loser"):
        held = tree[name]
        assert isinstance(held, Holds)
        assert held.allows((node.mountpoint / name).read_bytes()), name
    assert bad.exists() or worse.exists()
    again = bad if bad.exists() else worse
    again.write_bytes(LATEST)
    assert again.read_bytes() == LATEST
    node.require_sound()


KILLED_TRAINER = """
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    file.write(b"torn" * 300_000)
    print("half way", flush=True)
    sys.stdin.read()
"""


def test_a_trainer_killed_while_overwriting_leaves_its_prefix_and_the_predecessor_is_to_be_had(node: Node) -> None:
    """P-trainer-killed: the file is what it wrote, the mount lives, ``ckptfs previous`` has the last good content."""
    set_up(node)
    node.mount()
    latest = node.mountpoint / "latest.pt"
    trainer = subprocess.Popen(
        [sys.executable, "-c", KILLED_TRAINER, latest], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == b"half way\n"
    trainer.kill()
    trainer.communicate()
    assert latest.read_bytes() == b"torn" * 300_000
    wait_until(lambda: os.getxattr(latest, "user.ckptfs.state") == b"sealed", "the seal of what was written")
    assert "replaced" in node.ckptfs("previous", latest).stdout
    node.ckptfs("previous", latest, "--restore")
    assert latest.read_bytes() == LATEST
    node.ckptfs("previous", latest, "--restore")
    assert latest.read_bytes() == b"torn" * 300_000, "restoring twice exchanges the two"
    node.require_sound()


@pytest.mark.parametrize("after_mib", [3, 6, 9])
def test_a_torn_new_file_on_several_stripes_is_a_prefix(node: Node, after_mib: int) -> None:
    """P-daemon-killed: lanes are written side by side, and yet no hole shows in what a sequential writer wrote."""
    node.mount(fault="lane.write=limit:8MiB")
    whole = content("striped", 24 << 20)
    path = node.mountpoint / "striped"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, whole[: 16 << 20])
    wait_until(lambda: bytes_in_lanes(node) >= after_mib << 20, "bytes in the lanes")
    node.kill()
    with pytest.raises(OSError, match="not connected"):
        os.close(descriptor)
    node.mount()
    assert whole.startswith(path.read_bytes())
    node.require_sound()


def bytes_in_lanes(node: Node) -> int:
    return sum(lane.stat().st_size for stripe in node.stripes for lane in (stripe / "images").iterdir())
