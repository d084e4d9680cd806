"""Asking a running volume, from a command: plain blocking sockets, one connection for one request.

Errors come as exceptions: what the daemon refused as the class it raised there, :class:`NoDaemon` when none listens,
:class:`DaemonSilent` when it does not answer in time or not in this protocol.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TypeVar

import msgspec

from ckptfs import errors
from ckptfs.admin.messages import SOCKET_NAME, ErrorReply, Reply, Request, decode_reply, encode
from ckptfs.errors import CkptfsError, RefusedError

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 60.0


class NoDaemon(RefusedError):
    """No process serves the volume, or this user may not talk to it."""


class DaemonSilent(CkptfsError):
    """The daemon took the request and did not answer it."""


class DaemonFailed(CkptfsError):
    """The daemon failed at the request in a way it has no name for."""


def ask(directory: Path, request: Request, expected: type[T], *, timeout_s: float | None = DEFAULT_TIMEOUT_S) -> T:
    """Send ``request`` to the daemon of the volume in ``directory`` and return its reply, which must be an
    ``expected``.

    ``timeout_s`` bounds each wait for the daemon; None waits as long as it takes.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        _connect(connection, directory)
        try:
            connection.sendall(encode(request))
            reply = decode_reply(_read_line(connection))
        except TimeoutError:
            raise DaemonSilent(f"the daemon of {directory} did not answer within {timeout_s:g} s; try again") from None
        except (ConnectionError, msgspec.MsgspecError) as why:
            raise DaemonSilent(
                f"the daemon of {directory} ended while it was asked ({why}); its log may say why"
            ) from None
    if isinstance(reply, expected):
        return reply
    raise _as_exception(reply)


def _connect(connection: socket.socket, directory: Path) -> None:
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as why:
        raise NoDaemon(f"the volume directory {directory} cannot be reached: {why.strerror}") from None
    try:
        connection.connect(f"/proc/self/fd/{fd}/{SOCKET_NAME}")
    except PermissionError:
        raise NoDaemon(f"only the user who mounted {directory} may ask its daemon; run this as that user") from None
    except OSError:
        raise NoDaemon(
            f"the volume {directory} is not mounted. Mount it: ckptfs mount {directory} MOUNTPOINT"
        ) from None
    finally:
        os.close(fd)


def _read_line(connection: socket.socket) -> bytes:
    received = bytearray()
    while not received.endswith(b"\n"):
        part = connection.recv(1 << 20)
        if not part:
            raise ConnectionError("the connection was closed")
        received += part
    return bytes(received)


def _as_exception(reply: Reply) -> Exception:
    if not isinstance(reply, ErrorReply):
        return DaemonSilent(f"the daemon answered something else: {type(reply).__name__}")
    if reply.error == "OSError":
        return OSError(reply.errno, reply.message)
    kind = getattr(errors, reply.error, None)
    if isinstance(kind, type) and issubclass(kind, CkptfsError):
        return kind(reply.message)
    return DaemonFailed(reply.message)
