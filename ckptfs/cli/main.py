"""The entry point: the group of commands, and what an exception means as an exit status.

======  =====================================================================
status  meaning
======  =====================================================================
0       done
1       failed
2       wrong usage
3       done in part, or refused to protect data
4       not a ckptfs path, or no daemon where one is needed
5       damage found
130     interrupted
======  =====================================================================

An expected error is one message on stderr: what, why, what to do. A traceback on stderr is always a bug in ckptfs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from ckptfs import __version__, faults
from ckptfs.cli.doctor import doctor
from ckptfs.cli.fsck import fsck
from ckptfs.cli.info import info
from ckptfs.cli.mkfs import mkfs
from ckptfs.cli.mount import mount
from ckptfs.cli.previous import previous
from ckptfs.cli.status import status
from ckptfs.cli.umount import umount
from ckptfs.cli.undelete import undelete
from ckptfs.errors import CkptfsError, DamagedData, InvalidArgument, NotAVolume, ProtectedData

FAILED = 1
WRONG_USAGE = 2
PROTECTED = 3
NOT_CKPTFS = 4
DAMAGED = 5
_INTERRUPTED = 130


_EXAMPLES = (
    "\b\n"
    "Make a volume, mount it, save into it, unmount it:\n"
    "  ckptfs mkfs /var/lib/ckptfs --stripe /nvme0/ckptfs --stripe /nvme1/ckptfs\n"
    "  ckptfs mount /var/lib/ckptfs /checkpoints\n"
    "  ckptfs status /checkpoints\n"
    "  ckptfs umount /checkpoints"
    "\n\n\b\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage, 3 done in part or refused to protect data,\n"
    "4 not a ckptfs path or no daemon where one is needed, 5 damage found."
)


@click.group(epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ckptfs")
def ckptfs() -> None:
    """A filesystem for deep-learning checkpoints."""
    faults.arm_from_environment()


for _command in (mkfs, mount, umount, status, info, previous, undelete, fsck, doctor):
    ckptfs.add_command(_command)


def main() -> None:
    """Run the command of ``sys.argv`` and end the process with its exit status."""
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output had enough. Python would complain about it again while it shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status; errors that are expected are printed on stderr."""
    try:
        result = ckptfs.main(list(arguments), prog_name="ckptfs", standalone_mode=False)
    except click.ClickException as why:
        why.show()
        return why.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except BrokenPipeError:
        return FAILED
    except (CkptfsError, OSError) as why:
        return _explain(why)
    except BaseExceptionGroup as group:
        # A nursery wraps what its tasks raise.
        why = _only_expected(group)
        if why is None:
            raise
        return _INTERRUPTED if isinstance(why, KeyboardInterrupt) else _explain(why)
    return result if isinstance(result, int) else 0


def exit_status(error: BaseException) -> int:
    """The exit status that says what went wrong."""
    from ckptfs.admin.client import NoDaemon

    match error:
        case NotAVolume() | NoDaemon():
            return NOT_CKPTFS
        case DamagedData():
            return DAMAGED
        case ProtectedData():
            return PROTECTED
        case InvalidArgument():
            return WRONG_USAGE
        case _:
            return FAILED


def _explain(error: BaseException) -> int:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename is not None else ""
        message = f"{where}{error.strerror}"
        if isinstance(error, PermissionError) and os.geteuid() != 0:
            message += ". Run this as the user who owns the volume, or as root"
    else:
        message = str(error)
    click.echo(f"ckptfs: {message}", err=True)
    return exit_status(error)


def _only_expected(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """The first error in the group, or None when one of them is a bug."""
    expected, bugs = group.split((CkptfsError, OSError, KeyboardInterrupt))
    if bugs is not None or expected is None:
        return None
    first: BaseException = expected
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
