"""cp, rsync, tar, git, find and fio."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.conftest import Pair
from tests.support.mounted import run
from tests.support.trees import describe

GIT_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "2030-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_COMMITTER_DATE": "2030-01-01T00:00:00Z",
    "HOME": "/nonexistent",
    "PATH": os.environ["PATH"],
}


def needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkpoint directory with something of everything."""
    root = tmp_path / "tree"
    (root / "step-100" / "shards").mkdir(parents=True)
    (root / "empty").mkdir(mode=0o700)
    numbers = random.Random(11)
    for number in range(8):
        (root / "step-100" / "shards" / f"{number}.distcp").write_bytes(numbers.randbytes(200_000 * number + 1))
    (root / "step-100" / "large").write_bytes(numbers.randbytes(10 << 20))
    with open(root / "sparse", "wb") as file:
        file.write(b"start")
        file.seek(3 << 20)
        file.write(b"end")
    (root / "none").touch()
    (root / "latest").symlink_to("step-100")
    (root / "dangling").symlink_to("nowhere/at all")
    os.link(root / "step-100" / "large", root / "best")
    os.mkfifo(root / "pipe")
    (root / "caf\udce9 \n").write_bytes(b"odd name")
    (root / "none").chmod(0o444)
    (root / "sparse").chmod(0o4750)
    os.setxattr(root / "sparse", "user.step", b"100")
    if os.geteuid() == 0:
        os.chown(root / "none", 1234, 4321)
    for index, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(path, ns=(10**18, 10**18 + index * 1_000_000_007), follow_symlinks=False)
    return root


def test_cp_archives_a_tree_to_the_mount_and_back(pair: Pair, tree: Path) -> None:
    run(["cp", "-a", tree, pair.mount / "copy"])
    assert describe(pair.mount / "copy") == describe(tree)
    run(["cp", "-a", pair.mount / "copy", pair.native / "back"])
    assert describe(pair.native / "back") == describe(tree)


@needs("rsync")
def test_rsync_updates_a_tree_in_place(pair: Pair, tree: Path) -> None:
    command = ["rsync", "-aHX", "--inplace", "--no-whole-file", f"{tree}/"]
    run([*command, f"{pair.mount}/"])
    assert describe(pair.mount) == describe(tree)
    with open(tree / "step-100" / "large", "r+b") as file:
        file.seek(8 << 20)
        file.write(b"changed in the middle")
        file.truncate(9 << 20)
    (tree / "step-100" / "shards" / "3.distcp").write_bytes(b"shorter")
    shutil.rmtree(tree / "empty")
    run([*command, "--delete", f"{pair.mount}/"])
    assert describe(pair.mount) == describe(tree)
    run(["rsync", "-aHX", f"{pair.mount}/", f"{pair.native}/"])
    assert describe(pair.native) == describe(tree)


def test_tar_carries_a_tree_from_and_to_the_mount(pair: Pair, tree: Path) -> None:
    run(["tar", "--xattrs", "-C", tree, "-cf", pair.mount / "in.tar", "."])
    (pair.mount / "out").mkdir()
    run(["tar", "--xattrs", "--numeric-owner", "-C", pair.mount / "out", "-xpf", pair.mount / "in.tar"])
    shown = describe(pair.mount / "out", times=False)
    assert shown == describe(tree, times=False)
    run(["tar", "--xattrs", "-S", "-C", pair.mount / "out", "-cf", pair.native / "out.tar", "."])
    (pair.native / "out").mkdir()
    run(["tar", "--xattrs", "--numeric-owner", "-C", pair.native / "out", "-xpf", pair.native / "out.tar"])
    assert describe(pair.native / "out", times=False) == shown


@needs("git")
def test_git_makes_the_same_commit(pair: Pair, tree: Path) -> None:
    (tree / "pipe").unlink()
    commits: list[str] = []
    for directory in pair:
        run(["cp", "-a", tree, directory / "repository"])

        def git(*arguments: str, repository: Path = directory / "repository") -> str:
            return run(["git", "-C", repository, *arguments], env=GIT_ENVIRONMENT)

        git("-c", "init.defaultBranch=main", "init", "--quiet")
        git("config", "core.fileMode", "true")
        git("add", "--all")
        git("commit", "--quiet", "--message", "a checkpoint")
        git("gc", "--quiet")
        (directory / "repository" / "none").unlink()
        git("commit", "--quiet", "--all", "--message", "less")
        git("checkout", "--quiet", "HEAD~1")
        git("fsck", "--strict")
        assert git("status", "--porcelain") == ""
        commits.append(git("rev-parse", "main"))
    assert commits[0] == commits[1]


def test_find_deletes_a_tree(pair: Pair, tree: Path) -> None:
    run(["cp", "-a", tree, pair.mount / "copy"])
    run(["find", pair.mount / "copy", "-name", "*.distcp", "-delete"])
    assert not list((pair.mount / "copy").rglob("*.distcp"))
    run(["find", pair.mount / "copy", "-delete"])
    assert os.listdir(pair.mount) == []


@needs("fio")
@pytest.mark.parametrize("engine", ["psync", "mmap"])
def test_fio_verifies_random_writes(pair: Pair, engine: str) -> None:
    done = run(
        [
            "fio",
            "--name=verify",
            f"--directory={pair.mount}",
            f"--ioengine={engine}",
            "--rw=randwrite",
            "--size=24m",
            "--bsrange=4k-256k",
            "--bs_unaligned=0",
            "--numjobs=2",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--do_verify=1",
            "--fsync=64",
            "--fallocate=none",
            "--end_fsync=1",
            "--output-format=terse",
        ]
    )
    assert "verify" in done


@needs("fio")
def test_fio_verifies_random_direct_writes(pair: Pair) -> None:
    run(
        [
            "fio",
            "--name=direct",
            f"--directory={pair.mount}",
            "--ioengine=psync",
            "--direct=1",
            "--rw=randrw",
            "--size=16m",
            "--bs=64k",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--fallocate=none",
        ]
    )


def test_sha256sum_agrees_across_both(pair: Pair, tree: Path) -> None:
    shutil.copytree(tree / "step-100", pair.mount / "step-100")
    sums = [
        subprocess.run(
            ["sh", "-c", "find . -type f -exec sha256sum {} + | sort"],
            cwd=directory,
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout
        for directory in (tree / "step-100", pair.mount / "step-100")
    ]
    assert sums[0] == sums[1]
