"""The power goes: what was flushed is there, what was not takes nothing good with it.

Each test has a clean run, in which everything is sealed, and one that ends with the loss of power. In the second nothing is sealed in the
background (``NOTHING_SEALED``), so that a slow machine does not turn "never sealed" into "sealed just in time".
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.support.chaos import PowerChaos
from tests.support.content import content, describe
from tests.support.mounted import wait_until
from tests.support.power import DIED_AT_A_FAULT_POINT, Node

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

NOTHING_SEALED = "seal.begin=EIO,lane.fsync=delay:600"
"""The first for what files hold now, the second for contents that were replaced."""
SIZES = [0, 5, 70_000, 3_400_000]
RENAME_EXCHANGE = 2
AT_FDCWD = -100


def write(path: Path, data: bytes, *, fsync: bool = False) -> None:
    """As torch.save does: truncate or create, write, close."""
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(data), 1 << 20):
            file.write(data[start : start + (1 << 20)])
        if fsync:
            os.fsync(file.fileno())


def fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def held_open(path: Path, mode: str) -> Generator[io.FileIO]:
    """An open file; closing it may fail, its daemon being gone."""
    file = io.FileIO(path, mode)
    try:
        yield file
    finally:
        with suppress(OSError):
            file.close()


def assert_holds(path: Path, expected: bytes) -> None:
    found = path.read_bytes()
    assert found == expected, f"{path.name}: {describe(found)} instead of {describe(expected)}"


def state(path: Path) -> bytes:
    return os.getxattr(path, "user.ckptfs.state")


def exchange(one: Path, other: Path) -> None:
    """renameat2(2), which Python has no name for."""
    renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    if renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


class Run:
    """The two runs: :attr:`root` is the mount."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.root = node.mountpoint
        node.mount()
        (self.root / "aside").mkdir()

    def goes_on(self, fault: str = NOTHING_SEALED) -> None:
        """Everything so far is sealed; from now on nothing is."""
        self.node.umount()
        self.node.mount(fault=fault)

    def ends(self, *, metadata_survives: bool = True) -> None:
        """The power goes. ``metadata_survives``: just after somebody made all commits durable."""
        if metadata_survives:
            fsync_path(self.root / "aside")
        self.node.lose_power()
        self.node.mount()

    def quarantined(self) -> list[bytes]:
        """What fsck lists, which finds no damage. The volume is unmounted afterwards."""
        return sorted(file.path for file in self.node.require_sound().quarantine)


@pytest.fixture
def power(powered: Node) -> Run:
    return Run(powered)


# --- what was flushed ------------------------------------------------------------------------------------------------


def test_a_fresh_volume_survives_the_loss_of_power(powered: Node) -> None:
    """P-power-lost: also when nothing was written."""
    powered.mount()
    powered.lose_power()
    powered.mount()
    assert os.listdir(powered.mountpoint) == []
    powered.require_sound()


def test_a_fsynced_file_survives_with_its_name(power: Run) -> None:
    """P-fsync-file: content, size and name, of new files, overwritten and renamed ones, and the directories above."""
    write(power.root / "overwritten", content("overwritten", 1, 2_000_000))
    write(power.root / "target", content("target", 1, 2_000_000))
    power.goes_on(fault="")
    (power.root / "new").mkdir()
    (power.root / "new" / "er").mkdir()
    for size in SIZES:
        write(power.root / "new" / "er" / f"file{size}", content(f"file{size}", 1, size), fsync=True)
    write(power.root / "overwritten", content("overwritten", 2, 1_500_000), fsync=True)
    write(power.root / "source", content("source", 1, 2_500_000))
    os.rename(power.root / "source", power.root / "target")
    fsync_path(power.root / "target")
    power.ends(metadata_survives=False)
    for size in SIZES:
        assert_holds(power.root / "new" / "er" / f"file{size}", content(f"file{size}", 1, size))
    assert_holds(power.root / "overwritten", content("overwritten", 2, 1_500_000))
    assert_holds(power.root / "target", content("source", 1, 2_500_000))
    assert power.quarantined() == []


@pytest.mark.parametrize("count", [3, 20], ids=["few", "many"])
def test_a_fsynced_directory_survives_with_the_files_it_names(power: Run, count: int) -> None:
    """P-fsync-dir: names are there or gone as they were, and the files are sealed; few and many files are flushed differently."""
    old = power.root / "step400"
    old.mkdir()
    write(old / "removed", content("removed", 1, 100_000))
    write(power.root / "elsewhere", content("elsewhere", 1, 100_000))
    power.goes_on(fault="")
    for number in range(count):
        write(old / f"shard{number}", content(f"shard{number}", 1, 130_000 + number))
    (old / "removed").unlink()
    os.rename(old / "shard0", old / "renamed")
    os.symlink("renamed", old / "link")
    fsync_path(old)
    power.ends(metadata_survives=False)
    expected = {"renamed", "link", *(f"shard{number}" for number in range(1, count))}
    assert set(os.listdir(old)) == expected
    assert_holds(old / "link", content("shard0", 1, 130_000))
    for number in range(1, count):
        assert_holds(old / f"shard{number}", content(f"shard{number}", 1, 130_000 + number))
    assert power.quarantined() == []


def test_closed_files_survive_once_the_background_has_sealed_them(power: Run) -> None:
    """P-close-visible: visible at close, sealed within seconds without anybody asking; then it survives."""
    write(power.root / "latest.pt", content("latest", 1, 3_000_000))
    power.goes_on(fault="")
    write(power.root / "latest.pt", content("latest", 2, 3_300_000))
    write(power.root / "tmp", content("tmp", 1, 1_200_000))
    os.rename(power.root / "tmp", power.root / "renamed")
    assert_holds(power.root / "renamed", content("tmp", 1, 1_200_000))
    for name in ("latest.pt", "renamed"):
        wait_until(lambda name=name: state(power.root / name) == b"sealed", f"the seal of {name}")
    power.ends()
    assert_holds(power.root / "latest.pt", content("latest", 2, 3_300_000))
    assert_holds(power.root / "renamed", content("tmp", 1, 1_200_000))
    assert power.quarantined() == []


@pytest.mark.slow
def test_a_file_held_open_is_sealed_every_ten_seconds(power: Run) -> None:
    """P-close-visible, P-power-lost: a log that is never closed is there; an overwrite that was caught half way is not served."""
    write(power.root / "latest.pt", content("latest", 1, 3_000_000))
    power.goes_on(fault="")
    written = content("log", 1, 2_000_000)
    with held_open(power.root / "log", "wb") as log, held_open(power.root / "latest.pt", "wb") as latest:
        log.write(written)
        latest.write(content("latest", 2, 1_500_000))
        for name in ("log", "latest.pt"):
            wait_until(lambda name=name: state(power.root / name) == b"sealed", "the timed seal", timeout_s=40)
        power.node.lose_power()
    power.node.mount()
    assert_holds(power.root / "log", written)
    assert_holds(power.root / "latest.pt", content("latest", 1, 3_000_000))
    assert power.quarantined() == [b"latest.pt"]


def test_a_loss_of_one_of_three_devices_is_noticed(spread: Node) -> None:
    """P-power-lost, P-fsync-file: metadata and the other stripe are as they were; what was not sealed is not trusted for that."""
    power = Run(spread)
    write(power.root / "latest.pt", content("latest", 1, 3_000_000))
    write(power.root / "fsynced", content("fsynced", 1, 3_000_000), fsync=True)
    power.goes_on()
    write(power.root / "latest.pt", content("latest", 2, 3_000_000))
    write(power.root / "new", content("new", 1, 3_000_000))
    (power.root / "fsynced").unlink()
    spread.lose_power(spread.devices[2])
    spread.mount()
    assert_holds(power.root / "latest.pt", content("latest", 1, 3_000_000))
    assert_holds(power.root / "fsynced", content("fsynced", 1, 3_000_000))
    assert not (power.root / "new").exists()
    assert power.quarantined() == [b"latest.pt", b"new"]


# --- what was not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("survives", [True, False], ids=["metadata kept", "metadata lost"])
def test_an_unsynced_overwrite_gives_the_last_good_content_back(power: Run, survives: bool) -> None:
    """P-power-lost, P-quarantine: latest.pt overwritten twice in place; the overwritten contents can be looked at, and thrown away."""
    latest = power.root / "latest.pt"
    write(latest, content("latest", 1, 3_000_000))
    power.goes_on()
    write(latest, content("latest", 2, 3_100_000))
    with held_open(latest, "wb") as half:
        half.write(content("latest", 3, 1_000_000))
        power.ends(metadata_survives=survives)
    assert_holds(latest, content("latest", 1, 3_000_000))
    quarantined = power.quarantined()
    assert set(quarantined) == ({b"latest.pt"} if survives else set())
    node = power.node
    if quarantined:
        assert "latest.pt" in node.ckptfs("fsck", node.directory).stdout
        assert "restored" in node.ckptfs("fsck", node.directory, "--restore").stdout
        node.mount()
        assert_holds(latest, content("latest", 1, 3_000_000))
        assert len(list(power.root.rglob("latest.pt*"))) == 1 + len(quarantined)
        assert power.quarantined() == []


@pytest.mark.parametrize("survives", [True, False], ids=["metadata kept", "metadata lost"])
def test_the_last_good_step_comes_back_when_the_next_was_not_on_disk(power: Run, survives: bool) -> None:
    """P-power-lost, P-quarantine: step 500 written without fsync while step 400, files and directory, is removed."""
    good = power.root / "step400"
    (good / "shards").mkdir(parents=True)
    files = {good / "shards" / f"rank{rank}": content(f"rank{rank}", 400, 1_300_000) for rank in range(3)}
    files[good / "metadata"] = content("metadata", 400, 900)
    for path, data in files.items():
        write(path, data)
    power.goes_on()
    new = power.root / "step500"
    new.mkdir()
    for rank in range(3):
        write(new / f"rank{rank}", content(f"rank{rank}", 500, 1_300_000))
    for path in files:
        path.unlink()
    (good / "shards").rmdir()
    good.rmdir()
    power.ends(metadata_survives=survives)
    for path, data in files.items():
        assert_holds(path, data)
    assert not list(power.root.glob("step500/*"))
    quarantined = power.quarantined()
    assert quarantined == ([b"step500/rank0", b"step500/rank1", b"step500/rank2"] if survives else [])
    if survives:
        assert "discarded" in power.node.ckptfs("fsck", power.node.directory, "--discard").stdout
        assert power.quarantined() == []


@pytest.mark.parametrize("source_fsynced", [True, False], ids=["fsynced", "not fsynced"])
def test_a_rename_over_shows_the_old_file_or_the_new_one(power: Run, source_fsynced: bool) -> None:
    """P-rename-atomic: with the source fsynced either may be there; with it not on disk, the old one."""
    latest = power.root / "latest.pt"
    write(latest, content("latest", 1, 2_000_000))
    power.goes_on(fault="seal.begin:2=EIO" if source_fsynced else NOTHING_SEALED)
    write(power.root / "tmp", content("tmp", 1, 2_200_000), fsync=source_fsynced)
    write(power.root / "unsealed", b"holds the log")
    os.rename(power.root / "tmp", latest)
    power.ends()
    old, new = content("latest", 1, 2_000_000), content("tmp", 1, 2_200_000)
    found = latest.read_bytes()
    assert found == old or (source_fsynced and found == new), describe(found)
    if source_fsynced and found == old:
        assert_holds(power.root / "tmp", new)
    power.quarantined()


def test_a_fsynced_rename_over_stays(power: Run) -> None:
    """P-fsync-dir: fsync of the directory makes the rename final."""
    write(power.root / "latest.pt", content("latest", 1, 2_000_000))
    power.goes_on(fault="")
    write(power.root / "tmp", content("tmp", 1, 2_200_000), fsync=True)
    os.rename(power.root / "tmp", power.root / "latest.pt")
    fsync_path(power.root)
    power.ends(metadata_survives=False)
    assert_holds(power.root / "latest.pt", content("tmp", 1, 2_200_000))
    assert sorted(os.listdir(power.root)) == ["aside", "latest.pt"]
    assert power.quarantined() == []


def test_a_rename_out_of_a_fsynced_directory_costs_nothing(power: Run) -> None:
    """P-fsync-dir, P-rename-atomic: fsync of the directory that the winner came from makes the rename final, so the winner is sealed."""
    (power.root / "run").mkdir()
    write(power.root / "latest.pt", content("latest", 1, 2_000_000))
    power.goes_on(fault="")
    write(power.root / "run" / "tmp", content("tmp", 1, 2_200_000))
    os.rename(power.root / "run" / "tmp", power.root / "latest.pt")
    fsync_path(power.root / "run")
    power.ends(metadata_survives=False)
    assert_holds(power.root / "latest.pt", content("tmp", 1, 2_200_000))
    assert power.quarantined() == []


@pytest.mark.parametrize("overwrites", [True, False])
@pytest.mark.parametrize("survives", [True, False], ids=["metadata kept", "metadata lost"])
def test_a_commit_record_fsynced_while_empty_is_whole_or_not_there(
    power: Run, overwrites: bool, survives: bool
) -> None:
    """P-power-lost: torch.distributed.checkpoint fsyncs ``.metadata.tmp`` before it writes it, then unlinks and renames."""
    step = power.root / "step"
    step.mkdir()
    if overwrites:
        write(step / ".metadata", content("metadata", 1, 1014))
    power.goes_on(fault="seal.begin:6=EIO")
    shards = {step / f"__{rank}_0.distcp": content(f"shard{rank}", 2, 1_200_000) for rank in range(4)}
    for path, data in shards.items():
        write(path, data, fsync=True)
    with (step / ".metadata.tmp").open("wb") as file:
        os.fsync(file.fileno())
        file.write(content("metadata", 2, 1014))
    if overwrites:
        (step / ".metadata").unlink()
    os.rename(step / ".metadata.tmp", step / ".metadata")
    power.ends(metadata_survives=survives)
    for path, data in shards.items():
        assert_holds(path, data)
    if overwrites:
        assert_holds(step / ".metadata", content("metadata", 1, 1014))
    else:
        assert not (step / ".metadata").exists()
    power.quarantined()


@pytest.mark.parametrize("survives", [True, False], ids=["metadata kept", "metadata lost"])
def test_a_safetensors_save_renamed_before_close_costs_nothing(power: Run, survives: bool) -> None:
    """P-power-lost, P-rename-atomic: temporary file, ftruncate to full size, write, rename over, then close."""
    model = power.root / "model.safetensors"
    write(model, content("model", 1, 2_500_000))
    power.goes_on()
    descriptor = os.open(power.root / ".tmpAbC", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.ftruncate(descriptor, 2_600_000)
    os.write(descriptor, content("model", 2, 2_600_000))
    os.rename(power.root / ".tmpAbC", model)
    os.close(descriptor)
    power.ends(metadata_survives=survives)
    assert_holds(model, content("model", 1, 2_500_000))
    assert not (power.root / ".tmpAbC").exists()
    power.quarantined()


@pytest.mark.parametrize("survives", [True, False], ids=["metadata kept", "metadata lost"])
def test_a_pointer_switched_before_its_data_was_on_disk_goes_back(power: Run, survives: bool) -> None:
    """P-power-lost: a symbolic link and a pointer file, both replaced by a rename, and a link removed and made anew."""
    (power.root / "step400").mkdir()
    write(power.root / "step400" / "model", content("model", 400, 1_500_000))
    os.symlink("step400", power.root / "latest")
    os.symlink("step400/model", power.root / "last.ckpt")
    write(power.root / "latest.txt", b"step400")
    power.goes_on()
    (power.root / "step500").mkdir()
    write(power.root / "step500" / "model", content("model", 500, 1_500_000))
    os.symlink("step500", power.root / ".new")
    os.rename(power.root / ".new", power.root / "latest")
    (power.root / "last.ckpt").unlink()
    os.symlink("step500/model", power.root / "last.ckpt")
    write(power.root / ".txt", b"step500")
    os.rename(power.root / ".txt", power.root / "latest.txt")
    (power.root / "step400" / "model").unlink()
    (power.root / "step400").rmdir()
    power.ends(metadata_survives=survives)
    assert os.readlink(power.root / "latest") == "step400"
    assert_holds(power.root / "latest" / "model", content("model", 400, 1_500_000))
    assert_holds(power.root / "latest.txt", b"step400")
    assert_holds(power.root / "last.ckpt", content("model", 400, 1_500_000))
    power.quarantined()


@pytest.mark.parametrize("survives", [True, False], ids=["metadata kept", "metadata lost"])
def test_hard_links_keep_their_content(power: Run, survives: bool) -> None:
    """P-power-lost: a name made and one removed while something was not on disk; a linked file that never was."""
    kept = content("kept", 1, 1_500_000)
    write(power.root / "last", kept)
    os.link(power.root / "last", power.root / "best")
    power.goes_on()
    write(power.root / "new", content("new", 1, 1_500_000))
    os.link(power.root / "new", power.root / "new-link")
    (power.root / "last").unlink()
    os.rename(power.root / "new-link", power.root / "best")
    power.ends(metadata_survives=survives)
    assert_holds(power.root / "last", kept)
    assert_holds(power.root / "best", kept)
    assert os.stat(power.root / "last").st_nlink == 2
    assert not list(power.root.glob("new*"))
    power.quarantined()


@pytest.mark.parametrize("survives", [True, False], ids=["metadata kept", "metadata lost"])
def test_an_exchange_with_what_was_not_on_disk_is_undone(power: Run, survives: bool) -> None:
    """P-power-lost, P-rename-atomic: renameat2 with RENAME_EXCHANGE."""
    write(power.root / "latest.pt", content("latest", 1, 1_500_000))
    write(power.root / "sealed", content("sealed", 1, 1_500_000))
    write(power.root / "other", content("other", 1, 1_500_000))
    power.goes_on()
    write(power.root / "new", content("new", 1, 1_500_000))
    exchange(power.root / "new", power.root / "latest.pt")
    exchange(power.root / "sealed", power.root / "other")
    power.ends(metadata_survives=survives)
    assert_holds(power.root / "latest.pt", content("latest", 1, 1_500_000))
    assert_holds(power.root / "sealed", content("sealed", 1, 1_500_000))
    assert_holds(power.root / "other", content("other", 1, 1_500_000))
    assert not (power.root / "new").exists()
    power.quarantined()


def test_what_was_removed_and_final_can_be_undeleted_after_a_crash(power: Run) -> None:
    """P-undelete: a removal made final by fsync stands, and the content is in the log still."""
    step = power.root / "step400"
    step.mkdir()
    write(step / "model", content("model", 1, 1_500_000))
    write(power.root / "replaced", content("replaced", 1, 1_200_000))
    power.goes_on(fault="")
    (step / "model").unlink()
    step.rmdir()
    write(power.root / "replaced", content("replaced", 2, 1_200_000), fsync=True)
    fsync_path(power.root)
    power.ends(metadata_survives=False)
    assert not step.exists()
    power.node.ckptfs("undelete", step)
    assert_holds(step / "model", content("model", 1, 1_500_000))
    power.node.ckptfs("previous", power.root / "replaced", "--restore")
    assert_holds(power.root / "replaced", content("replaced", 1, 1_200_000))
    power.quarantined()


@pytest.mark.parametrize("point", ["recovery.before-commit", "recovery.committed", "barrier.before"])
def test_a_recovery_that_loses_power_too_is_done_again(power: Run, point: str) -> None:
    """P-power-lost, while it recovers from the last loss of power."""
    write(power.root / "latest.pt", content("latest", 1, 2_000_000))
    write(power.root / "doomed", content("doomed", 1, 100_000))
    power.goes_on()
    write(power.root / "latest.pt", content("latest", 2, 2_000_000))
    write(power.root / "new", content("new", 1, 2_000_000))
    (power.root / "doomed").unlink()
    fsync_path(power.root / "aside")
    node = power.node
    node.lose_power()
    for _ in range(2):
        assert node.try_mount(fault=point) == DIED_AT_A_FAULT_POINT
        node.devices[0].lose_power()
        node.devices[0].restore_power()
    node.mount()
    assert_holds(power.root / "latest.pt", content("latest", 1, 2_000_000))
    assert_holds(power.root / "doomed", content("doomed", 1, 100_000))
    assert power.quarantined() == [b"latest.pt", b"new"]


# --- edited in place --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_committed_transactions_of_a_database_are_there(power: Run, journal: str) -> None:
    """P-edit-in-place, P-fsync-file: SQLite commits, each flushed by SQLite, then one that is under way."""
    path = power.root / "study.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        assert database.execute(f"PRAGMA journal_mode={journal}").fetchone() == (journal.lower(),)
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE trial (number INTEGER, filler BLOB)")
    power.goes_on(fault="")
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA synchronous=FULL")
    for number in range(20):
        database.execute("INSERT INTO trial VALUES (?, zeroblob(20000))", (number,))
    database.execute("PRAGMA cache_size=5")
    database.execute("BEGIN")
    database.executemany("INSERT INTO trial VALUES (?, randomblob(20000))", [(number,) for number in range(100, 120)])
    power.node.lose_power()
    with pytest.raises(sqlite3.OperationalError):
        database.execute("COMMIT")
    database.close()
    power.node.mount()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert [row[0] for row in database.execute("SELECT number FROM trial ORDER BY 1")] == list(range(20))
    assert power.quarantined() == []


def test_a_flushed_map_and_array_file_edited_in_place_are_there(power: Run) -> None:
    """P-edit-in-place: np.memmap with flush, h5py with flush and fsync, then edits that nobody flushed."""
    array, data = power.root / "array.bin", power.root / "data.h5"
    mapped = np.memmap(array, np.int64, "w+", shape=(300_000,))
    mapped[:] = 7
    mapped.flush()
    del mapped
    with h5py.File(data, "w") as file:
        file["numbers"] = np.arange(200_000)
    power.goes_on(fault="")
    mapped = np.memmap(array, np.int64, "r+")
    mapped[1000:2000] = 8
    mapped.flush()
    with h5py.File(data, "a") as file:
        numbers = file["numbers"]
        assert isinstance(numbers, h5py.Dataset)
        numbers[10:20] = 0
        file["more"] = np.ones(150_000)
    fsync_path(data)
    mapped[5000:5100] = 9
    power.node.lose_power()
    del mapped
    power.node.mount()
    found = np.fromfile(array, np.int64)
    assert found.shape == (300_000,)
    assert set(found[1000:2000]) == {8}
    assert set(found[5000:5100]) <= {7, 9}
    assert set(found[:1000]) | set(found[2000:5000]) | set(found[5100:]) == {7}
    with h5py.File(data, "r") as file:
        numbers, more = file["numbers"], file["more"]
        assert isinstance(numbers, h5py.Dataset)
        assert isinstance(more, h5py.Dataset)
        assert numbers[:22].tolist() == [*range(10), *[0] * 10, 20, 21]
        assert more[:].sum() == 150_000
    assert power.quarantined() == []


@pytest.mark.parametrize("survives", [True, False], ids=["metadata kept", "metadata lost"])
def test_an_appended_log_keeps_what_was_flushed(power: Run, survives: bool) -> None:
    """P-edit-in-place, P-fsync-file: appended, flushed, appended; the flushed part is there, and of the rest nothing foreign."""
    path = power.root / "log"
    whole = content("log", 1, 1_700_000)
    write(path, whole[:500_000])
    power.goes_on(fault="seal.begin:2=EIO")
    with held_open(path, "ab") as log:
        log.write(whole[500_000:1_200_000])
        os.fsync(log.fileno())
        log.write(whole[1_200_000:])
        power.ends(metadata_survives=survives)
    found = path.read_bytes()
    assert found[:1_200_000] == whole[:1_200_000], describe(found)
    rest = found[1_200_000:]
    assert whole[1_200_000:].startswith(rest.rstrip(b"\0")), describe(found)
    power.quarantined()


@pytest.mark.parametrize("survives", [True, False], ids=["metadata kept", "metadata lost"])
def test_a_truncated_file_is_as_long_as_before_or_after(power: Run, survives: bool) -> None:
    """P-edit-in-place: made shorter, made longer, and made shorter then longer; never bytes that were cut off before a flush."""
    whole = content("file", 1, 2_500_000)
    for name in ("shorter", "longer", "both", "flushed"):
        write(power.root / name, whole)
    power.goes_on(fault="seal.begin:2=EIO")
    os.truncate(power.root / "flushed", 1_100_000)
    fsync_path(power.root / "flushed")
    os.truncate(power.root / "flushed", 2_000_000)
    os.truncate(power.root / "shorter", 1_000_000)
    os.truncate(power.root / "longer", 4_000_000)
    os.truncate(power.root / "both", 1_000_000)
    os.truncate(power.root / "both", 2_000_000)
    power.ends(metadata_survives=survives)
    found = (power.root / "flushed").read_bytes()
    assert found[:1_100_000] == whole[:1_100_000]
    assert not found[1_100_000:].strip(b"\0"), "bytes that were cut off, and that flushed, are back"
    for name in ("shorter", "longer", "both"):
        found = (power.root / name).read_bytes()
        assert found[:1_000_000] == whole[:1_000_000], name
        assert len(found) in {1_000_000, 2_000_000, 2_500_000, 4_000_000}, (name, len(found))
        assert whole.startswith(found.rstrip(b"\0")), (name, describe(found))
    power.quarantined()


def test_mapped_pages_without_a_flush_leave_the_sealed_file(power: Run) -> None:
    """P-edit-in-place: each page is the old or the new one."""
    path = power.root / "map"
    write(path, b"o" * 1_500_000)
    power.goes_on()
    with held_open(path, "rb+") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:] = b"n" * 1_500_000
        power.ends()
    found = path.read_bytes()
    assert len(found) == 1_500_000
    assert {bytes(found[at : at + 4096]) for at in range(0, len(found), 4096)} <= {
        b"o" * 4096,
        b"n" * 4096,
        b"o" * (1_500_000 % 4096),
        b"n" * (1_500_000 % 4096),
    }
    power.quarantined()


@pytest.mark.parametrize("seed", range(3))
def test_random_saves_and_losses_of_power(powered: Node, seed: int) -> None:
    """P-fsync-file, P-fsync-dir, P-rename-atomic, P-power-lost: no fsynced content is lost, and no file shows a mix. See tools/chaos."""
    chaos = PowerChaos(powered, seed)
    chaos.start()
    for _ in range(3):
        chaos.round()
    chaos.finish()
