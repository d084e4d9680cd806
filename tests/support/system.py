"""What tests ask of the kernel beyond Python's ``os``: renameat2, other users, error numbers."""

from __future__ import annotations

import ctypes
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

P = ParamSpec("P")

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RENAME_WHITEOUT = 4

NOBODY = 65534

_AT_FDCWD = -100
_CHILD_TIMEOUT_S = 30
_libc = ctypes.CDLL(None, use_errno=True)


def errno_of(call: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> int:
    """The error number that ``call`` fails with; 0 when it succeeds."""
    try:
        call(*args, **kwargs)
    except OSError as why:
        return why.errno or -1
    return 0


def renameat2(source: Path, target: Path, flags: int) -> None:
    """rename(2) with flags, which Python lacks. Raises ``OSError``."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(source))


def in_child(action: Callable[[], object]) -> int:
    """Run ``action`` in a forked child; returns the error number it failed with, 0 when it succeeded.

    A child that neither ends nor fails within half a minute is ended by its alarm.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads: the child makes system calls only
        pid = os.fork()
    if pid == 0:
        signal.alarm(_CHILD_TIMEOUT_S)
        status = 255
        try:
            action()
            status = 0
        except OSError as why:
            status = why.errno or 255
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status not in {255, -signal.SIGALRM}, f"the child ended with {status}"
    return status


def as_user(
    directory: Path, action: Callable[[], object], uid: int = NOBODY, gid: int = NOBODY, groups: tuple[int, ...] = ()
) -> int:
    """Run ``action`` in ``directory`` as another user, in a child; returns its error number. Needs root.

    ``action`` uses relative paths: the directories above belong to the test's user alone.
    """

    def become_and_act() -> None:
        os.chdir(directory)
        os.setgroups(groups)
        os.setgid(gid)
        os.setuid(uid)
        action()

    return in_child(become_and_act)
