"""What commands print and with which status they end, where no daemon is needed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click
import pytest

from ckptfs.admin.client import NoDaemon
from ckptfs.cli import main
from ckptfs.cli.main import run
from ckptfs.cli.output import plain, show_path
from ckptfs.errors import ConfigError, DamagedData, InvalidArgument, NotAVolume, ProtectedData, VolumeInUse
from ckptfs.volume.format import format_volume
from ckptfs.volume.lock import VolumeLock, note_mountpoint

COMMANDS = sorted(main.ckptfs.commands)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example" in shown
    assert f"\n    ckptfs {command} " in shown


def test_mkfs_makes_a_volume_and_says_how_to_mount_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, stripe = tmp_path / "v", tmp_path / "s"
    assert run(["mkfs", str(directory), "--stripe", str(stripe), "--chunk-size", "1MiB", "--reserve", "1MiB"]) == 0
    assert f"ckptfs mount {directory}" in capsys.readouterr().out
    assert 'chunk_size = "1MiB"' in (directory / "volume.toml").read_text()
    assert (stripe / "ckptfs-stripe.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["mkfs"], 2),
        (["mkfs", "v", "--chunk-size", "big"], 2),
        (["mkfs", "v", "--width", "wide"], 2),
        (["mkfs", "v", "--width", "3"], 1),
        (["mkfs", "full"], 1),
        (["mount", "v", "m", "-o", "allow_all"], 2),
        (["umount", "m"], 4),
        (["status", "m"], 4),
        (["info", "m/file"], 4),
        (["previous", "m/file"], 4),
        (["undelete", "m/file"], 4),
        (["doctor"], 2),
        (["no-such-command"], 2),
    ],
)
def test_an_expected_error_is_a_message_and_a_status_and_never_a_traceback(
    arguments: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "full" / "thing").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.strip()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("x"), 1),
        (VolumeInUse("x"), 1),
        (OSError(28, "x"), 1),
        (InvalidArgument("x"), 2),
        (ProtectedData("x"), 3),
        (NotAVolume("x"), 4),
        (NoDaemon("x"), 4),
        (DamagedData("x"), 5),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_each_kind_of_error_has_its_exit_status_also_out_of_a_nursery(
    error: Exception, status: int, wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise BaseExceptionGroup("a nursery", [BaseExceptionGroup("in a nursery", [error])]) if wrapped else error

    monkeypatch.setitem(main.ckptfs.commands, "doctor", click.Command("doctor", callback=fail))
    assert run(["doctor"]) == status


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BaseExceptionGroup("a nursery", [ConfigError("x"), ZeroDivisionError()])

    monkeypatch.setitem(main.ckptfs.commands, "doctor", click.Command("doctor", callback=fail))
    with pytest.raises(BaseExceptionGroup):
        run(["doctor"])


def test_doctor_lists_every_fault_point(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--faults"]) == 0
    assert "seal.lanes-flushed" in capsys.readouterr().out


def test_faults_are_refused_outside_of_tests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CKPTFS_FAULT", "seal.begin")
    monkeypatch.delenv("CKPTFS_TESTING", raising=False)
    assert run(["doctor", "--faults"]) == 1
    assert "CKPTFS_TESTING" in capsys.readouterr().err


def test_fsck_of_a_volume_in_use_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    format_volume(tmp_path / "v")
    with VolumeLock.acquire(tmp_path / "v"):
        note_mountpoint(tmp_path / "v", "/mnt/c")
        assert run(["fsck", str(tmp_path / "v")]) == 1
    assert "ckptfs umount /mnt/c" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("directory", "mountpoint", "said"),
    [
        ("v", "missing", "does not exist. Make the directory first"),
        ("v", "file", "is not a directory"),
        ("v", "full", "is not empty"),
        ("v", "v/stripe0", "lies inside the volume directory"),
        ("holder/v", "holder", "is not empty"),
        ("full", "m", "no ckptfs volume"),
    ],
)
def test_what_cannot_be_mounted_is_refused_by_the_launcher_with_the_daemons_message(
    directory: str, mountpoint: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    format_volume(tmp_path / "v", [tmp_path / "s"])
    (tmp_path / "v" / "stripe0").mkdir()
    (tmp_path / "holder" / "v").mkdir(parents=True)
    (tmp_path / "m").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "full" / "thing").mkdir(parents=True)
    assert run(["mount", str(tmp_path / directory), str(tmp_path / mountpoint)]) in (1, 4)
    shown = capfd.readouterr().err
    assert said in shown
    assert "Traceback" not in shown
    assert os.listdir(tmp_path / "full") == ["thing"]
    assert os.listdir(tmp_path / "holder" / "v") == []


def test_json_carries_names_that_are_no_text_as_python_reads_them() -> None:
    assert json.loads(json.dumps(plain({"path": b"a\xff"}))) == {"path": os.fsdecode(b"a\xff")}


def test_a_name_cannot_play_tricks_with_the_terminal() -> None:
    assert show_path(b"a\x1b[2J\n\xff") == r"a\x1b[2J\n\udcff"
    assert show_path(b"") == "/"
