"""The control socket of a running volume: ``control.sock`` in the volume directory, for its owner only (mode 0600).

A client can be slow, silent, gone or malicious without hurting the daemon: a request has bounded length and must come
whole within a time, a reply must be taken within a time, few connections are served at once, and nothing that a
client sends ends more than its own connection. Requests of one connection are answered in order; requests of several
run side by side.

The path of a socket address has 107 bytes at most, fewer than a volume directory may need, so the socket is always
reached through ``/proc/self/fd``.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec
import trio

from ckptfs.admin.answers import AdministeredVolume, answer
from ckptfs.admin.messages import (
    MAX_REQUEST_BYTES,
    SOCKET_NAME,
    DaemonInfo,
    ErrorReply,
    Reply,
    Request,
    Unmount,
    UnmountReply,
    decode_request,
    encode,
)
from ckptfs.errors import CkptfsError

log = logging.getLogger(__name__)

_MAX_CONNECTIONS = 16
_REQUEST_WITHIN_S = 30
_REPLY_TAKEN_WITHIN_S = 30
_BACKLOG = 16
_SESSION_KIND = "pyfuse3"


class MountedVolume(AdministeredVolume, Protocol):
    """A volume that has a directory to put the socket in."""

    @property
    def directory(self) -> Path: ...


class UnmountableSession(Protocol):
    """The mount, as far as the server needs it."""

    @property
    def mountpoint(self) -> Path: ...

    async def request_unmount(self, *, lazily: bool = False) -> None: ...


async def serve_admin(
    volume: MountedVolume,
    session: UnmountableSession,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the control socket of ``volume`` until cancelled; a socket left by a killed daemon is replaced.

    The caller holds the lock of the volume, so no other daemon can be behind a socket that is found.
    """
    server = _Server(volume, session)
    with _listening_socket(volume.directory) as listener:
        task_status.started()
        await trio.serve_listeners(server.converse, [trio.SocketListener(listener)])


class _Server:
    def __init__(self, volume: MountedVolume, session: UnmountableSession) -> None:
        self._volume = volume
        self._session = session
        self._started_s = time.monotonic()
        self._connections = 0

    async def converse(self, stream: trio.SocketStream) -> None:
        """Answer one client until it leaves or misbehaves."""
        if self._connections >= _MAX_CONNECTIONS:
            await stream.aclose()
            return
        self._connections += 1
        try:
            async with stream:
                await self._answer_lines(stream)
        except (trio.BrokenResourceError, trio.TooSlowError):
            return  # gone, or as good as gone
        except Exception:  # one client's connection must never end the mount
            log.exception("the control connection failed")
        finally:
            self._connections -= 1

    async def _answer_lines(self, stream: trio.SocketStream) -> None:
        buffer = bytearray()
        while (line := await _next_line(stream, buffer)) is not None:
            reply = await self._reply_to(line)
            with trio.CancelScope(shield=isinstance(reply, UnmountReply)), trio.fail_after(_REPLY_TAKEN_WITHIN_S):
                await stream.send_all(encode(reply))

    async def _reply_to(self, line: bytes) -> Reply:
        try:
            request = decode_request(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as why:
            return ErrorReply("InvalidArgument", f"not a request that this version of ckptfs knows: {why}")
        try:
            return await self._do(request)
        except CkptfsError as why:
            return ErrorReply(type(why).__name__, str(why))
        except OSError as why:
            return ErrorReply("OSError", str(why), why.errno or 0)
        except Exception as why:
            log.exception("answering %s failed", type(request).__name__)
            return ErrorReply("", f"the daemon failed at this ({type(why).__name__}: {why}); its log has more")

    async def _do(self, request: Request) -> Reply:
        if isinstance(request, Unmount):
            # Sealing while the mount still serves keeps the time short in which programs find the mountpoint bare.
            await self._volume.seal_all()
            with trio.CancelScope(shield=True):  # unmounting ends the session, which cancels its services
                await self._session.request_unmount(lazily=request.lazy)
                return UnmountReply()
        return await answer(self._volume, request, self._describe())

    def _describe(self) -> DaemonInfo:
        return DaemonInfo(
            pid=os.getpid(),
            mountpoint=str(self._session.mountpoint),
            session=_SESSION_KIND,
            uptime_s=round(time.monotonic() - self._started_s, 3),
        )


async def _next_line(stream: trio.SocketStream, buffer: bytearray) -> bytes | None:
    """The next line; None when the client is done, sends none in time, or sends one that is too long."""
    with trio.move_on_after(_REQUEST_WITHIN_S):
        while b"\n" not in buffer:
            if len(buffer) > MAX_REQUEST_BYTES:
                return None
            received = await stream.receive_some(MAX_REQUEST_BYTES)
            if not received:
                return None
            buffer += received
        line, _, rest = buffer.partition(b"\n")
        buffer[:] = rest
        return bytes(line)
    return None


@contextmanager
def _listening_socket(directory: Path) -> Generator[trio.socket.SocketType]:
    path = directory / SOCKET_NAME
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Linux gives the new name the mode of the unbound socket: there is no moment in which others could connect.
        os.fchmod(listener.fileno(), 0o600)
        path.unlink(missing_ok=True)
        with _open_directory(directory) as fd:
            listener.bind(f"/proc/self/fd/{fd}/{SOCKET_NAME}")
        listener.listen(_BACKLOG)
        try:
            yield trio.socket.from_stdlib_socket(listener)
        finally:
            path.unlink(missing_ok=True)
    finally:
        listener.close()


@contextmanager
def _open_directory(directory: Path) -> Generator[int]:
    """A file descriptor of ``directory``, to reach a socket in it by a short path."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
