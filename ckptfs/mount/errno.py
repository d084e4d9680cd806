"""Error numbers: the only place in ckptfs that chooses one for the kernel.

:data:`ERRNO` maps each domain error to an errno; an ``OSError`` of a device keeps its own. :func:`answered` wraps every
operation, so that an exception is always an answer: pyfuse3 ends the whole mount when anything but ``FUSEError`` leaves
a handler.

Frameworks hide the errno of a failed save ("unexpected pos 640 vs 598"), so each one that means lost bytes is logged
here with the operation, the path and the offset. What nobody foresaw is logged with its traceback and answered EIO.
"""

from __future__ import annotations

import errno
import functools
import inspect
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3

from ckptfs import errors

log = logging.getLogger(__name__)

ERRNO: dict[type[errors.CkptfsError], int] = {
    errors.NameNotFound: errno.ENOENT,
    errors.NameExists: errno.EEXIST,
    errors.NameTooLong: errno.ENAMETOOLONG,
    errors.NotEmpty: errno.ENOTEMPTY,
    errors.NotADirectory: errno.ENOTDIR,
    errors.IsADirectory: errno.EISDIR,
    errors.InvalidArgument: errno.EINVAL,
    errors.NotPermitted: errno.EPERM,
    errors.TooManyLinks: errno.EMLINK,
    errors.AttributeNotFound: errno.ENODATA,
    errors.NotSupported: errno.EOPNOTSUPP,
    errors.StaleInode: errno.ESTALE,
    errors.ReadOnlyVolume: errno.EROFS,
    errors.DamagedData: errno.EIO,
    errors.ProtectedData: errno.EBUSY,
    errors.RefusedError: errno.EPERM,
    errors.CkptfsError: errno.EIO,
}
"""Domain error → errno. A class that is not here has the errno of its nearest base."""

_DATA_LOST = {errno.EIO, errno.ENOSPC, errno.EDQUOT}
_FROM_A_DEVICE = {*_DATA_LOST, errno.EFBIG, errno.EROFS}
"""What a device or its filesystem answers in the course of things. Any other ``OSError`` is news, logged with its
traceback.
"""

_SHOWN = (
    "inode",
    "parent_inode",
    "name",
    "parent_inode_old",
    "name_old",
    "parent_inode_new",
    "name_new",
    "off",
    "size",
)

_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")


class _NamesHandles(Protocol):
    def inode_of(self, fh: int) -> int | None: ...

    async def path_of(self, inode: int) -> bytes: ...


_Self = TypeVar("_Self", bound=_NamesHandles)


def errno_of(why: Exception) -> int:
    """The error number that ``why`` is answered with; EIO for what is neither a ``CkptfsError`` nor an ``OSError``."""
    if isinstance(why, errors.CkptfsError):
        return next(ERRNO[kind] for kind in type(why).__mro__ if kind in ERRNO)
    if isinstance(why, OSError) and why.errno:
        return why.errno
    return errno.EIO


def report(request: str, why: Exception) -> None:
    """Log that ``request`` failed, with a traceback where nobody foresaw it."""
    number = errno_of(why)
    said = f"{request}: {errno.errorcode.get(number, number)} ({os.strerror(number)})"
    if _foreseen(why):
        log.error("%s: %s", said, why)
    else:
        log.error("%s: nobody foresaw this", said, exc_info=why)


def answered(
    operation: Callable[Concatenate[_Self, _Params], Awaitable[_Result]],
) -> Callable[Concatenate[_Self, _Params], CoroutineType[Any, Any, _Result]]:
    """Make an operation raise nothing but ``FUSEError``, and log what should be known."""
    parameters = list(inspect.signature(operation).parameters)[1:]

    @functools.wraps(operation)
    async def answer(self: _Self, *args: _Params.args, **kwargs: _Params.kwargs) -> _Result:
        try:
            return await operation(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as why:
            if _worth_saying(why):
                given = dict(zip(parameters, args, strict=False)) | kwargs
                report(await _describe(self, operation.__name__, given), why)
            raise pyfuse3.FUSEError(errno_of(why)) from why

    return answer


async def _describe(operations: _NamesHandles, operation: str, arguments: dict[str, object]) -> str:
    """``write inode 17 off 1048576 size 4096 (b'run1/step_500.pt')``."""
    words = [operation]
    fh = arguments.get("fh")
    if isinstance(fh, int) and "inode" not in arguments:
        arguments = {"inode": operations.inode_of(fh), **arguments}
    buffer = arguments.get("buf")
    if isinstance(buffer, bytes):
        arguments = {**arguments, "size": len(buffer)}
    for name in _SHOWN:
        if name in arguments:
            words += [name, str(arguments[name])]
    inode = arguments.get("inode", arguments.get("parent_inode"))
    if isinstance(inode, int):
        with suppress(Exception):  # the path is a help; what failed is said without it too
            words.append(f"({await operations.path_of(inode)!r})")
    return " ".join(words)


def _foreseen(why: Exception) -> bool:
    return isinstance(why, errors.CkptfsError) or (isinstance(why, OSError) and why.errno in _FROM_A_DEVICE)


def _worth_saying(why: Exception) -> bool:
    """Most errors are everyday answers (ENOENT), and saying nothing keeps them cheap."""
    return not _foreseen(why) or errno_of(why) in _DATA_LOST
