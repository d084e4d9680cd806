"""A mount that many examples share, and a watchdog that turns a request that is never answered into an error."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.mounted import MountedVolume

if TYPE_CHECKING:
    from collections.abc import Generator

CHUNK_BYTES = 64 << 10
"""The smallest that ``mkfs`` takes, so that small files cross stripes."""

_PATIENCE_S = 60.0
_ALARMS = ("Traceback", "nobody foresaw", "ERROR")


class Watchdog:
    """Kills the daemon when a guarded call takes too long: the kernel then answers it, with an error."""

    def __init__(self, volume: MountedVolume) -> None:
        self.fired = False
        self._volume = volume
        self._deadline_s: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def guard(self, patience_s: float = _PATIENCE_S) -> Generator[None, None, None]:
        """Give what runs inside so many seconds."""
        self._deadline_s = time.monotonic() + patience_s
        try:
            yield
        finally:
            self._deadline_s = None
        assert not self.fired, f"a request was not answered within {patience_s} s\n{self._volume.log()[-4000:]}"

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            deadline_s = self._deadline_s
            if deadline_s is not None and time.monotonic() > deadline_s:
                self.fired = True
                self._deadline_s = None
                with suppress(AssertionError, ProcessLookupError):
                    os.kill(self._volume.pid, signal.SIGKILL)


class Rig:
    """A volume over three stripes with small chunks, mounted from the beginning to :meth:`dispose`."""

    def __init__(self, base: Path, width: str) -> None:
        self.volume = MountedVolume(base, stripe_count=3)
        self.local = base / "local"
        self.local.mkdir()
        self.watchdog = Watchdog(self.volume)
        self._examples = 0
        self._log_read = 0
        try:
            self.volume.mkfs("--chunk-size", f"{CHUNK_BYTES >> 10}KiB", "--width", width)
            self.volume.mount()
        except BaseException:
            self.dispose()
            raise

    def new_example(self) -> tuple[Path, Path]:
        """A directory on the mount and one beside it, both empty and new. A mount that an example lost is there again."""
        if not self.volume.serving():
            self.volume.mount()
        self._examples += 1
        pair = (self.volume.mountpoint / f"{self._examples}", self.local / f"{self._examples}")
        for directory in pair:
            directory.mkdir()
        return pair

    def kill(self) -> None:
        """End the daemon as the out-of-memory killer would. The dead mount stays until :meth:`mount_again`."""
        self.volume.kill()

    def mount_again(self) -> None:
        """Mount after a kill."""
        self.volume.mount()

    def remount(self) -> None:
        """Unmount and mount."""
        self.volume.remount()

    def check_log(self) -> None:
        """Fail when the daemon has logged, since the last look, what it should not have to."""
        log = self.volume.log()
        new, self._log_read = log[self._log_read :], len(log)
        alarms = [line for line in new.splitlines() if any(alarm in line for alarm in _ALARMS)]
        assert not alarms, f"the daemon complained:\n{new[-6000:]}"

    def dispose(self) -> None:
        """Leave neither a mount nor a process."""
        self.watchdog.stop()
        self.volume.dispose()
