"""The messages of the control socket: one JSON object a line, one reply for each request, in order.

Each message carries its name under ``"kind"``. Paths are bytes relative to the volume's root, so they travel as
base64. The records inside are those of ``volume/reports.py``. An error travels as the name of its class and its
sentence, and is raised again by the client, so a command behaves the same with and without a daemon.
"""

from __future__ import annotations

import msgspec

from ckptfs.volume.reports import FileInfo, PreviousVersion, RemovedName, VolumeStatus

SOCKET_NAME = "control.sock"
MAX_REQUEST_BYTES = 64 << 10
"""A path has at most 4096 bytes, in base64 5462: more is no request of ours."""


class DaemonInfo(msgspec.Struct, frozen=True):
    """The process that serves the volume."""

    pid: int
    mountpoint: str
    session: str
    uptime_s: float


class AskStatus(msgspec.Struct, frozen=True, tag_field="kind", tag="status"):
    """How is the volume?"""


class AskInfo(msgspec.Struct, frozen=True, tag_field="kind", tag="info"):
    """What is the file at ``path``, or what are all files below it?"""

    path: bytes


class AskPrevious(msgspec.Struct, frozen=True, tag_field="kind", tag="previous"):
    """Which contents did ``path`` have before?"""

    path: bytes


class RestorePrevious(msgspec.Struct, frozen=True, tag_field="kind", tag="restore-previous"):
    """Give ``path`` its latest previous content back."""

    path: bytes


class AskRemoved(msgspec.Struct, frozen=True, tag_field="kind", tag="removed"):
    """Which removed names at or below ``path`` can come back?"""

    path: bytes


class Undelete(msgspec.Struct, frozen=True, tag_field="kind", tag="undelete"):
    """Bring back what was removed at or below ``path``."""

    path: bytes


class Fsck(msgspec.Struct, frozen=True, tag_field="kind", tag="fsck"):
    """Check the volume: always refused, for a check needs the volume at rest."""


class Unmount(msgspec.Struct, frozen=True, tag_field="kind", tag="unmount"):
    """Seal everything and unmount; ``lazy`` detaches a busy mount, which then ends with its last open file."""

    lazy: bool = False


Request = AskStatus | AskInfo | AskPrevious | RestorePrevious | AskRemoved | Undelete | Fsck | Unmount


class StatusReply(msgspec.Struct, frozen=True, tag_field="kind", tag="status"):
    """Answers :class:`AskStatus`; ``daemon`` is None where a command answers without one."""

    status: VolumeStatus
    daemon: DaemonInfo | None


class InfoReply(msgspec.Struct, frozen=True, tag_field="kind", tag="info"):
    """Answers :class:`AskInfo`."""

    files: list[FileInfo]


class PreviousReply(msgspec.Struct, frozen=True, tag_field="kind", tag="previous"):
    """Answers :class:`AskPrevious`; latest first."""

    versions: list[PreviousVersion]


class RemovedReply(msgspec.Struct, frozen=True, tag_field="kind", tag="removed"):
    """Answers :class:`AskRemoved`; latest first."""

    names: list[RemovedName]


class RestoredReply(msgspec.Struct, frozen=True, tag_field="kind", tag="restored"):
    """Answers :class:`RestorePrevious` and :class:`Undelete` with the paths that came back."""

    paths: list[bytes]


class UnmountReply(msgspec.Struct, frozen=True, tag_field="kind", tag="unmounted"):
    """Answers :class:`Unmount`: the mount is out of the directory tree, and the daemon ends."""


class ErrorReply(msgspec.Struct, frozen=True, tag_field="kind", tag="error"):
    """Answers any request that failed: the class in ``ckptfs.errors`` (or "OSError", or ""), and a sentence."""

    error: str
    message: str
    errno: int = 0


Reply = StatusReply | InfoReply | PreviousReply | RemovedReply | RestoredReply | UnmountReply | ErrorReply


def encode(message: Request | Reply) -> bytes:
    """One line."""
    return msgspec.json.encode(message) + b"\n"


_request_decoder = msgspec.json.Decoder(Request)
_reply_decoder = msgspec.json.Decoder(Reply)


def decode_request(line: bytes) -> Request:
    """Raises ``msgspec.MsgspecError`` for anything that is no request."""
    return _request_decoder.decode(line)


def decode_reply(line: bytes) -> Reply:
    """Raises ``msgspec.MsgspecError`` for anything that is no reply."""
    return _reply_decoder.decode(line)
