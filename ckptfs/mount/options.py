"""The ``-o`` options of a mount."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field, replace

from ckptfs.errors import InvalidArgument
from ckptfs.mount.operations import Presentation

_SWITCHES = ("ro", "rw", "allow_other", "noallow_other", "debug", "default_permissions")
_VALUES = ("uid", "gid", "umask", "fsname")
_KERNEL = ("nosuid", "suid", "nodev", "dev", "noexec", "exec", "noatime", "atime", "sync", "async", "dirsync")


@dataclass(frozen=True, slots=True)
class MountOptions:
    """What was asked for with ``-o``.

    ``default_permissions`` is always in force: the kernel checks access against owner, group and mode. ``presentation``
    holds the uid, gid and umask options; ``allow_other`` lets every user in (access is checked all the same) and is the
    default for root, whose mounts are the machine's, unless ``noallow_other`` is given; ``kernel`` the options that the
    kernel knows for every filesystem, in the order given.
    """

    read_only: bool = False
    allow_other: bool = False
    debug: bool = False
    fsname: str | None = None
    presentation: Presentation = field(default_factory=Presentation)
    kernel: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> MountOptions:
        """Options from ``"ro,uid=1000,umask=027"``; an empty text gives the defaults, and a later option wins.

        The umask is octal. Raises :class:`InvalidArgument` naming what is unknown, or what has no sensible value.
        """
        options = MountOptions(allow_other=os.geteuid() == 0)
        for part in filter(None, text.split(",")):
            name, has_value, value = part.partition("=")
            if has_value and name in _VALUES:
                options = options._with_value(name, value)
            elif not has_value and name in _SWITCHES:
                options = options._with_switch(name)  # noqa: SLF001  # its own class
            elif not has_value and name in _KERNEL:
                options = replace(options, kernel=(*options.kernel, name))
            else:
                raise InvalidArgument(_complaint(name, bool(has_value)))
        return options

    def _with_switch(self, name: str) -> MountOptions:
        match name:
            case "ro" | "rw":
                return replace(self, read_only=name == "ro")
            case "allow_other" | "noallow_other":
                return replace(self, allow_other=name == "allow_other")
            case "debug":
                return replace(self, debug=True)
            case _:
                return self  # default_permissions is always on

    def _with_value(self, name: str, value: str) -> MountOptions:
        if name == "fsname":
            return replace(self, fsname=value)
        try:
            number = int(value, 8 if name == "umask" else 10)
        except ValueError:
            number = -1
        if not 0 <= number <= (0o777 if name == "umask" else 2**32 - 2):
            kind = "an octal number up to 777" if name == "umask" else "a number"
            raise InvalidArgument(f"mount option {name}={value}: {name} must be {kind}")
        if name == "uid":
            return replace(self, presentation=replace(self.presentation, uid=number))
        if name == "gid":
            return replace(self, presentation=replace(self.presentation, gid=number))
        return replace(self, presentation=replace(self.presentation, umask=number))


def _complaint(name: str, has_value: bool) -> str:
    if name in _VALUES:
        return f"mount option {name} needs a value: {name}=..."
    known = (*_SWITCHES, *_VALUES, *_KERNEL)
    if has_value and name in known:
        return f"mount option {name} takes no value"
    near = difflib.get_close_matches(name, known, n=1)
    meant = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    return f"unknown mount option {name!r}; {meant}"
