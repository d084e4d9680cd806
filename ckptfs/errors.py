"""What can go wrong, as ckptfs names it.

The layers below the mount raise these and know no errno; ``mount/errno.py`` holds the one table from class to errno, and
``cli`` the one from class to exit status. An ``OSError`` of a device or a store (ENOSPC, EDQUOT, EIO) passes through unchanged.

::

    CkptfsError
    ├── NameNotFound, NameExists, NameTooLong, NotEmpty, NotADirectory, IsADirectory
    ├── InvalidArgument, NotPermitted, TooManyLinks, AttributeNotFound, NotSupported
    ├── StaleInode                  the inode is gone for good; look the name up again
    ├── ReadOnlyVolume
    ├── DamagedData                 bytes that should be there are not, or are wrong
    └── RefusedError                the request is understood, and doing it would be wrong: the message says why
        ├── VolumeInUse             another process serves the volume
        ├── StripeMismatch          a stripe is missing, swapped or foreign
        ├── ConfigError             volume.toml does not say what it must
        ├── NotAVolume              the directory holds no volume
        ├── NewerSchema             written by a later ckptfs
        └── ProtectedData           refused because data would be lost, or a file is busy
"""


class CkptfsError(Exception):
    """The root. ``str()`` of every instance is a sentence fit for a user: what, why, what to do."""


class NameNotFound(CkptfsError):
    """No such name in this directory."""


class NameExists(CkptfsError):
    """The name is taken."""


class NameTooLong(CkptfsError):
    """A name over 255 bytes, or a symlink target over 4095."""


class NotEmpty(CkptfsError):
    """A directory that must be empty is not."""


class NotADirectory(CkptfsError):
    """A directory was needed."""


class IsADirectory(CkptfsError):
    """Anything but a directory was needed."""


class InvalidArgument(CkptfsError):
    """An argument outside what the operation takes: rename flags, a directory moved into itself."""


class NotPermitted(CkptfsError):
    """The operation is not allowed on this kind of object: a hard link to a directory."""


class TooManyLinks(CkptfsError):
    """The link count is at its limit."""


class AttributeNotFound(CkptfsError):
    """No such extended attribute."""


class NotSupported(CkptfsError):
    """ckptfs does not do this; docs/semantics.md says why."""


class StaleInode(CkptfsError):
    """The inode is gone for good."""


class ReadOnlyVolume(CkptfsError):
    """The volume is mounted read-only."""


class DamagedData(CkptfsError):
    """Bytes that should be there are missing or wrong; nothing is served in their place."""


class RefusedError(CkptfsError):
    """Understood, and refused; the message says why and what to do."""


class VolumeInUse(RefusedError):
    """Another process on this machine serves the volume."""


class StripeMismatch(RefusedError):
    """A stripe directory is missing, swapped with another, or belongs to another volume."""


class ConfigError(RefusedError):
    """``volume.toml`` does not say what it must."""


class NotAVolume(RefusedError):
    """The directory holds no volume."""


class NewerSchema(RefusedError):
    """The metadata was written by a later version of ckptfs."""


class ProtectedData(RefusedError):
    """Doing it now would lose data, or the file is busy."""
