"""A real volume on a real mount, driven through the command line as a user would.

Everything lives in one temporary directory. Whatever a test does, :meth:`MountedVolume.dispose` leaves neither a mount nor a daemon.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ckptfs.volume.lock import read_holder

COMMAND_TIMEOUT_S = 60


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    """Poll ``condition``, which must become true within ``timeout_s``; ``what`` says in the failure what was waited for."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s} s in vain for: {what}")
        time.sleep(0.02)


class MountedVolume:
    """A volume under ``base``; not formatted or mounted before the methods that say so."""

    def __init__(self, base: Path, stripe_count: int = 2) -> None:
        self.directory = base / "volume"
        self.mountpoint = base / "mnt"
        self.stripes = [base / f"nvme{index}" / "ckptfs" for index in range(stripe_count)]
        self.directory.mkdir(parents=True, exist_ok=True)
        self.mountpoint.mkdir(exist_ok=True)
        for stripe in self.stripes:
            stripe.parent.mkdir(exist_ok=True)

    def ckptfs(self, *arguments: str | Path, fault: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a ckptfs command; ``fault`` arms fault points in it and in a daemon that it starts."""
        environment = dict(os.environ, CKPTFS_TESTING="1", CKPTFS_FAULT=fault)
        done = subprocess.run(
            [sys.executable, "-m", "ckptfs", *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"ckptfs {arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}\n{self.log()}"
            )
        return done

    def mkfs(self, *options: str) -> None:
        """Format it over its stripes."""
        stripes = [word for stripe in self.stripes for word in ("--stripe", str(stripe))]
        self.ckptfs("mkfs", self.directory, *stripes, *options)

    def mount(self, options: str = "", fault: str = "") -> None:
        """Mount it, and return when it is ready."""
        flags = ["-o", options] if options else []
        self.ckptfs("mount", *flags, self.directory, self.mountpoint, fault=fault)

    def umount(self) -> None:
        """Unmount it, and return when everything is sealed."""
        self.ckptfs("umount", self.mountpoint)

    def remount(self, options: str = "", fault: str = "") -> None:
        """Unmount cleanly and mount again."""
        self.umount()
        self.mount(options, fault)

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        holder = read_holder(self.directory)
        assert holder is not None, f"no daemon serves {self.directory}\n{self.log()}"
        return holder.pid

    def serving(self) -> bool:
        """Whether a daemon serves it."""
        return read_holder(self.directory) is not None

    def kill(self) -> None:
        """Kill the daemon as the out-of-memory killer would, and return when it is gone. The dead mount stays."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait_dead()

    def wait_dead(self) -> None:
        """Wait until the daemon is gone, for whatever reason."""
        wait_until(lambda: not self.serving(), "the end of the daemon")

    def detach(self) -> None:
        """Take away the mount of a daemon that is gone."""
        detach = ["umount", "-l", str(self.mountpoint)]
        subprocess.run(detach, capture_output=True, check=False, timeout=COMMAND_TIMEOUT_S)

    def log(self) -> str:
        """What the daemon had to say."""
        try:
            return (self.directory / "ckptfs.log").read_text()
        except FileNotFoundError:
            return ""

    def dispose(self) -> None:
        """Unmount whatever is mounted and end whatever runs."""
        if self.serving():
            self.ckptfs("umount", self.mountpoint, check=False)
        if self.serving():
            self.kill()
        while os.path.ismount(self.mountpoint) or _is_dead(self.mountpoint):
            self.detach()


def run(command: Sequence[str | Path], timeout_s: float = 120, **options: object) -> str:
    """Run a program that must succeed; returns what it printed. A hung mount ends it after ``timeout_s``."""
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def _is_dead(mountpoint: Path) -> bool:
    try:
        os.statvfs(mountpoint)
    except OSError:
        return True
    return False
