"""Daemons that die and devices that lose power, on real mounts.

A :class:`Device` is an ext4 filesystem in a file. :meth:`Device.lose_power` stops it as a power failure would: nothing
that is not on the device yet gets there any more (``EXT4_IOC_SHUTDOWN``, no flush of its journal); mounting it again
replays the journal. The boot id stays, the unique id of the mount changes, which is how ckptfs tells that memory was lost.

A :class:`Node` is a volume whose daemon is this process's child, so that a test sees how it ended.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ckptfs.volume.format import format_volume
from ckptfs.volume.fsck import check
from ckptfs.volume.reports import FsckMode, FsckReport
from tests.support.mounted import COMMAND_TIMEOUT_S, MountedVolume, run

_SHUTDOWN = 2 << 30 | 4 << 16 | ord("X") << 8 | 125  # _IOR('X', 125, __u32)
_NO_LOG_FLUSH = 2

DIED_AT_A_FAULT_POINT = 137


class Device:
    """An ext4 filesystem in the file ``image``, mounted on ``mountpoint`` until :meth:`dispose`."""

    def __init__(self, image: Path, mountpoint: Path, size_bytes: int) -> None:
        self.mountpoint = mountpoint
        self._image = image
        mountpoint.mkdir(exist_ok=True)
        with image.open("wb") as file:
            file.truncate(size_bytes)
        run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image])
        self._mount()

    def lose_power(self) -> None:
        """Nothing more reaches the device. Everything on it fails until :meth:`restore_power`."""
        descriptor = os.open(self.mountpoint, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        """Mount what is on the device, once nobody has the lost filesystem open."""
        run(["umount", self.mountpoint])
        self._mount()

    def dispose(self) -> None:
        """Unmount; the loop device goes with the mount."""
        while os.path.ismount(self.mountpoint):
            run(["umount", self.mountpoint])

    def _mount(self) -> None:
        run(["mount", "-o", "loop", self._image, self.mountpoint])


class Node(MountedVolume):
    """A volume whose metadata and stripes lie where ``directory`` and ``stripes`` say, served by a child of this process."""

    def __init__(self, base: Path, directory: Path, stripes: list[Path], devices: list[Device]) -> None:
        super().__init__(base, stripe_count=0)
        self.directory = directory
        self.stripes = stripes
        self.devices = devices
        self._daemon: subprocess.Popen[bytes] | None = None

    def mount(self, options: str = "", fault: str = "") -> None:
        status = self.try_mount(options, fault)
        assert status is None, f"the daemon ended with {status} before the mount was ready\n{self.log()}"

    def try_mount(self, options: str = "", fault: str = "") -> int | None:
        """Mount; the daemon's exit status when it ended before the mount was ready."""
        readable, writable = os.pipe()
        said = (self.mountpoint.parent / "daemon.stderr").open("ab")
        flags = ["-o", options] if options else []
        command = [sys.executable, "-m", "ckptfs", "mount", "--foreground", "--ready-fd", str(writable), *flags]
        self._daemon = subprocess.Popen(
            [*command, "--", str(self.directory), str(self.mountpoint)],
            env=dict(os.environ, CKPTFS_TESTING="1", CKPTFS_FAULT=fault),
            stdin=subprocess.DEVNULL,
            stderr=said,
            pass_fds=[writable],
        )
        said.close()
        os.close(writable)
        with os.fdopen(readable, "rb", buffering=0) as ready:
            assert select.select([ready], [], [], COMMAND_TIMEOUT_S)[0], f"the mount is not ready\n{self.log()}"
            if ready.read(1):
                return None
        return self.wait_ended()

    def log(self) -> str:
        said = (self.mountpoint.parent / "daemon.stderr").read_text()
        try:
            return said + super().log()
        except OSError as why:
            return f"{said}(its log: {why})"

    def wait_ended(self) -> int:
        """The exit status of the daemon; negative is a signal. Its dead mount is taken away."""
        assert self._daemon is not None
        status = self._daemon.wait(COMMAND_TIMEOUT_S)
        self._daemon = None
        self.detach()
        return status

    @property
    def daemon_alive(self) -> bool:
        """Whether the daemon runs."""
        return self._daemon is not None and self._daemon.poll() is None

    def kill(self) -> None:
        assert self._daemon is not None
        self._daemon.kill()
        self.wait_ended()

    def mkfs(self, *options: str) -> None:
        raise NotImplementedError("a node is formatted by the function that makes it")

    def umount(self) -> None:
        """As the command does, without the second that starting it takes."""
        run(["umount", self.mountpoint])
        assert self._daemon is not None
        status = self._daemon.wait(COMMAND_TIMEOUT_S)
        self._daemon = None
        assert status == 0, f"the daemon ended with {status}\n{self.log()}"

    def lose_power(self, *devices: Device) -> None:
        """The devices (all, if none is named) and the daemon stop at once; then the devices are back, and nothing is mounted."""
        for device in devices or self.devices:
            device.lose_power()
        self.kill()
        for device in devices or self.devices:
            device.restore_power()

    def require_sound(self) -> FsckReport:
        """Unmount if it is mounted, and let fsck find nothing wrong."""
        if self.daemon_alive:
            self.umount()
        report = check(self.directory, FsckMode.CHECK)
        assert not report.damage, f"{report.damage}\n{self.log()}"
        return report

    def dispose(self) -> None:
        if self._daemon is not None:
            self._daemon.kill()
            self.wait_ended()
        deadline_s = time.monotonic() + COMMAND_TIMEOUT_S
        while os.path.ismount(self.mountpoint) and time.monotonic() < deadline_s:
            self.detach()
        for device in self.devices:
            device.dispose()


def node_on(base: Path, directory: Path, stripes: list[Path], devices: Sequence[Device] = ()) -> Node:
    """A formatted volume in ``directory`` over ``stripes``, mounted below ``base``."""
    node = Node(base, directory, stripes, list(devices))
    try:
        format_volume(directory, stripes, chunk_size=1 << 20, reserve_bytes=0)
    except BaseException:
        node.dispose()
        raise
    return node


def plain_node(base: Path) -> Node:
    """A formatted volume over two directories."""
    return node_on(base, base / "volume", [base / "nvme0", base / "nvme1"])


def node_on_one_device(base: Path, size_bytes: int = 2 << 30) -> Node:
    """A formatted volume, metadata and two stripes, on one device; roomy, so that nothing removed has to be freed."""
    device = Device(base / "device.img", base / "device", size_bytes)
    place = device.mountpoint
    return node_on(base, place / "volume", [place / "s0", place / "s1"], [device])


def node_on_three_devices(base: Path, size_bytes: int = 128 << 20) -> Node:
    """A formatted volume: metadata on the first device, a stripe on each of the two others."""
    devices = [Device(base / f"{name}.img", base / name, size_bytes) for name in ("metadata", "first", "second")]
    stripes = [device.mountpoint / "ckptfs" for device in devices[1:]]
    return node_on(base, devices[0].mountpoint / "volume", stripes, devices)
