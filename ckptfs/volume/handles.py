"""An open file, as the mount holds it: a :class:`LiveFile` and how this opener may use it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ckptfs.errors import ReadOnlyVolume
from ckptfs.volume.live import LiveFile
from ckptfs.volume.readahead import ReadAhead

if TYPE_CHECKING:
    from ckptfs.volume.volume import Volume


class OpenFile:
    """From ``open`` or ``create`` to ``release``. Offsets and sizes are bytes."""

    def __init__(self, volume: Volume, file: LiveFile, flags: int) -> None:
        self.ino = file.ino
        self._volume = volume
        self._file = file
        self._writes = flags & os.O_ACCMODE != os.O_RDONLY
        self._sets_atime = not flags & os.O_NOATIME
        self._ahead = ReadAhead(volume.landing)
        if self._writes:
            file.writers += 1
        else:
            file.readers += 1

    def read_nowait(self, offset: int, size: int) -> bytes | memoryview | None:
        """Bytes from memory, without waiting, valid until the next await; None when a thread is needed."""
        self._note_access()
        file = self._file
        found = file.read_nowait(offset, size)
        if found is not None:
            self._ahead.hit(file.image, offset, size, file.size)
        return found

    async def read(self, offset: int, size: int) -> bytes | bytearray | memoryview:
        """``size`` bytes, fewer at the end of the file, valid until the next await. Raises ``OSError``."""
        self._note_access()
        file = self._file
        self._ahead.miss(file.image, offset, size, file.size)
        await self._ahead.wait(offset, size)
        found = file.read_nowait(offset, size)
        return await file.read(offset, size) if found is None else found

    async def write(self, offset: int, data: bytes) -> int:
        """Accept ``data``; returns its length. Raises ``OSError``."""
        if self._volume.read_only:
            raise ReadOnlyVolume("the volume is mounted read-only")
        return await self._file.write(offset, data)

    async def flush(self) -> None:
        """A descriptor is closed: what was written so far is in the image when this returns. Raises ``OSError``."""
        if self._writes:
            await self._file.flush()

    async def fsync(self, data_only: bool) -> None:
        """Content, size and name survive a loss of power when this returns. Raises ``OSError``."""
        del data_only  # size and name are part of the promise either way
        await self._volume.fsync(self._file)

    async def release(self) -> None:
        """The last descriptor and mapping are gone."""
        await self._ahead.stop()
        if self._writes:
            # Mapped pages may have been written after the last FLUSH.
            with suppress(OSError):  # reported already, at the write and at FLUSH; RELEASE has nobody to report to
                await self._file.flush()
            self._file.writers -= 1
        else:
            self._file.readers -= 1
        await self._volume.released(self._file)

    def _note_access(self) -> None:
        if self._sets_atime and not self._volume.read_only:
            self._sets_atime = False  # once for each open is enough
            self._file.accessed()
