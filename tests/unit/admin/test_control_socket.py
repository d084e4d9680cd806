"""The control socket: requests and replies over a volume in memory, and clients that misbehave."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import trio
import trio.testing

from ckptfs.admin import server
from ckptfs.admin.client import DaemonFailed, DaemonSilent, NoDaemon, ask
from ckptfs.admin.messages import (
    MAX_REQUEST_BYTES,
    AskInfo,
    AskPrevious,
    AskRemoved,
    AskStatus,
    Fsck,
    InfoReply,
    PreviousReply,
    RemovedReply,
    Request,
    RestoredReply,
    RestorePrevious,
    StatusReply,
    Undelete,
    Unmount,
    UnmountReply,
)
from ckptfs.admin.server import serve_admin
from ckptfs.errors import NameNotFound, ProtectedData
from ckptfs.volume.attributes import Attributes, DirectoryEntry
from ckptfs.volume.reports import (
    ByteCounts,
    FileInfo,
    GenerationCounts,
    OpenFiles,
    PreviousVersion,
    RemovedName,
    StripeReport,
    VolumeIdentity,
    VolumeStatus,
)

T = TypeVar("T")

STATUS = VolumeStatus(
    VolumeIdentity("id", "/v", "0.1"),
    [StripeReport("/nvme0", 100, 50, healthy=True)],
    GenerationCounts(sealed=2),
    ByteCounts(10, 20),
    OpenFiles(1, 1),
)
PREVIOUS = PreviousVersion(3, 100, "sealed", "renamed_over", 1.0, None)
REMOVED = RemovedName(b"run/\xff", 100, is_directory=False, kind="unlinked", removed_s=1.0, expires_s=2.0)
TREE = {1: [(b"run", 2), (b"b\xff.pt", 3)], 2: [(b"a.pt", 4)]}
DIRECTORY, FILE = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644


def attributes(ino: int) -> Attributes:
    return Attributes(ino, DIRECTORY if ino in TREE else FILE, 1, 0, 0, 0, 1, 8, 0, 0, 0)


class VolumeInMemory:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.sealed = 0
        self.failure: Exception | None = None

    async def status(self) -> VolumeStatus:
        if self.failure is not None:
            raise self.failure
        return STATUS

    async def resolve(self, path: bytes) -> int:
        ino = 1
        for name in filter(None, path.split(b"/")):
            ino = dict(TREE.get(ino, [])).get(name, 0)
            if not ino:
                raise NameNotFound(f"no {os.fsdecode(path)}")
        return ino

    async def getattr(self, ino: int) -> Attributes:
        return attributes(ino)

    async def readdir(self, ino: int, after_cookie: int, limit: int) -> list[DirectoryEntry]:
        entries = [DirectoryEntry(n, name, attributes(child)) for n, (name, child) in enumerate(TREE[ino], start=1)]
        return entries[after_cookie : after_cookie + limit]

    async def file_info(self, path: bytes) -> FileInfo:
        return FileInfo(path, 1, 1, "sealed", 1, 1 << 20, 1, 1, torn=False)

    async def previous(self, path: bytes) -> list[PreviousVersion]:
        return [PREVIOUS]

    async def restore_previous(self, path: bytes) -> None:
        await self.resolve(path)

    async def removed(self, path: bytes) -> list[RemovedName]:
        return [REMOVED]

    async def undelete(self, path: bytes) -> list[bytes]:
        return [path]

    async def seal_all(self) -> None:
        self.sealed += 1


class SessionInMemory:
    def __init__(self) -> None:
        self.mountpoint = Path("/mnt/c")
        self.unmounted: list[bool] = []
        self.busy = False

    async def request_unmount(self, *, lazily: bool = False) -> None:
        if self.busy and not lazily:
            raise ProtectedData("/mnt/c is busy: python (pid 7)")
        self.unmounted.append(lazily)


class Daemon:
    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.volume = VolumeInMemory(directory)
        self.session = SessionInMemory()
        self.nursery = nursery

    async def ask(self, request: Request, expected: type[T]) -> T:
        question = partial(ask, self.volume.directory, request, expected, timeout_s=20)
        return await trio.to_thread.run_sync(question, abandon_on_cancel=True)

    async def connect(self) -> trio.SocketStream:
        return await trio.open_unix_socket(str(self.volume.directory / "control.sock"))


@asynccontextmanager
async def serving(directory: Path) -> AsyncGenerator[Daemon, None]:
    async with trio.open_nursery() as nursery:
        daemon = Daemon(directory, nursery)
        await nursery.start(serve_admin, daemon.volume, daemon.session)
        yield daemon
        nursery.cancel_scope.cancel()


async def send_forever(client: trio.SocketStream, requests: bytes) -> None:
    while True:
        await client.send_all(requests)


async def test_status_says_how_the_volume_is_and_which_process_serves_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon:
        reply = await daemon.ask(AskStatus(), StatusReply)
        assert reply.status == STATUS
        assert reply.daemon is not None
        assert (reply.daemon.pid, reply.daemon.mountpoint) == (os.getpid(), "/mnt/c")


async def test_names_that_are_no_text_travel_unchanged(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon:
        assert [info.path for info in (await daemon.ask(AskInfo(b"b\xff.pt"), InfoReply)).files] == [b"b\xff.pt"]
        assert (await daemon.ask(AskRemoved(b""), RemovedReply)).names == [REMOVED]
        assert (await daemon.ask(AskPrevious(b"x"), PreviousReply)).versions == [PREVIOUS]
        assert (await daemon.ask(Undelete(b"\xff"), RestoredReply)).paths == [b"\xff"]
        assert (await daemon.ask(RestorePrevious(b"run/a.pt"), RestoredReply)).paths == [b"run/a.pt"]


async def test_a_directory_stands_for_all_files_below_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon:
        files = (await daemon.ask(AskInfo(b""), InfoReply)).files
        assert [info.path for info in files] == [b"b\xff.pt", b"run/a.pt"]


async def test_what_the_volume_raises_is_raised_at_the_client(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon:
        with pytest.raises(NameNotFound, match="no gone"):
            await daemon.ask(AskInfo(b"gone"), InfoReply)
        daemon.volume.failure = OSError(5, "Input/output error")
        with pytest.raises(OSError, match="Input/output error") as failed:
            await daemon.ask(AskStatus(), StatusReply)
        assert failed.value.errno == 5


async def test_a_bug_fails_the_request_and_not_the_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path) as daemon:
        daemon.volume.failure = ZeroDivisionError("a bug")
        with pytest.raises(DaemonFailed, match="a bug"):
            await daemon.ask(AskStatus(), StatusReply)
        assert "ZeroDivisionError" in caplog.text
        daemon.volume.failure = None
        assert (await daemon.ask(AskStatus(), StatusReply)).status == STATUS


async def test_a_check_of_a_mounted_volume_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon:
        with pytest.raises(ProtectedData, match="mounted at /mnt/c"):
            await daemon.ask(Fsck(), StatusReply)


async def test_unmounting_seals_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon:
        await daemon.ask(Unmount(), UnmountReply)
        assert (daemon.volume.sealed, daemon.session.unmounted) == (1, [False])


async def test_a_busy_mount_says_who_holds_it_and_can_be_unmounted_lazily(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon:
        daemon.session.busy = True
        with pytest.raises(ProtectedData, match=r"pid 7"):
            await daemon.ask(Unmount(), UnmountReply)
        await daemon.ask(Unmount(lazy=True), UnmountReply)
        assert daemon.session.unmounted == [True]


async def test_the_reply_to_an_unmount_arrives_though_the_service_is_cancelled_by_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon:
        unmount = daemon.session.request_unmount

        async def unmount_and_end(*, lazily: bool = False) -> None:
            await unmount(lazily=lazily)
            daemon.nursery.cancel_scope.cancel()

        daemon.session.request_unmount = unmount_and_end
        with trio.CancelScope(shield=True):
            await daemon.ask(Unmount(), UnmountReply)


async def test_the_socket_is_for_its_owner_only_and_goes_with_the_daemon(tmp_path: Path) -> None:
    async with serving(tmp_path):
        assert stat.S_IMODE((tmp_path / "control.sock").stat().st_mode) == 0o600
    assert not (tmp_path / "control.sock").exists()


async def test_a_socket_left_by_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "control.sock"))
    async with serving(tmp_path) as daemon:
        await daemon.ask(AskStatus(), StatusReply)


async def test_a_volume_directory_may_have_a_path_longer_than_a_socket_address(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a" * 100] * 3)
    deep.mkdir(parents=True)
    async with serving(deep) as daemon:
        await daemon.ask(AskStatus(), StatusReply)


async def test_nonsense_is_answered_with_an_error_on_the_same_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon, await daemon.connect() as client:
        for nonsense in (b"\n", b"\xff\xff\n", b'{"kind": "format-disk"}\n', b'{"kind": "info", "path": 3}\n'):
            await client.send_all(nonsense)
            assert b"not a request" in await client.receive_some()
        await client.send_all(b'{"kind": "sta')
        await client.send_all(b'tus"}\n')
        assert b"nvme0" in await client.receive_some()


async def test_an_endless_request_ends_its_connection_and_no_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as daemon, await daemon.connect() as client:
        try:
            await client.send_all(b"x" * (4 * MAX_REQUEST_BYTES))
            assert await client.receive_some() == b""
        except trio.BrokenResourceError:
            pass  # the daemon hung up before all was sent
        await daemon.ask(AskStatus(), StatusReply)


async def test_clients_beyond_the_limit_are_turned_away_until_one_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MAX_CONNECTIONS", 1)
    async with serving(tmp_path) as daemon:
        async with await daemon.connect() as first:
            await first.send_all(b"\n")
            await first.receive_some()
            with pytest.raises(DaemonSilent):
                await daemon.ask(AskStatus(), StatusReply)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await daemon.ask(AskStatus(), StatusReply)


async def test_a_silent_client_is_let_go_after_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REQUEST_WITHIN_S", 0.01)
    async with serving(tmp_path) as daemon, await daemon.connect() as client:
        assert await client.receive_some() == b""


async def test_a_client_that_takes_no_reply_is_let_go_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_REPLY_TAKEN_WITHIN_S", 0.01)
    async with serving(tmp_path) as daemon:
        async with await daemon.connect() as client:
            with pytest.raises(trio.BrokenResourceError), trio.fail_after(20):
                await send_forever(client, b'{"kind": "status"}\n' * 100)
        await daemon.ask(AskStatus(), StatusReply)


def test_without_a_daemon_the_client_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoDaemon, match="not mounted"):
        ask(tmp_path, AskStatus(), StatusReply)
    with pytest.raises(NoDaemon, match="cannot be reached"):
        ask(tmp_path / "gone", AskStatus(), StatusReply)


def test_a_daemon_that_does_not_answer_in_time_is_reported(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "control.sock"))
        listener.listen()
        with pytest.raises(DaemonSilent, match=r"within 0\.01 s"):
            ask(tmp_path, AskStatus(), StatusReply, timeout_s=0.01)
