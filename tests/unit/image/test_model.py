"""An image beside a plain ``bytearray``: after every operation both hold the same bytes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ckptfs.image import IMAGES_DIRECTORY, Image, Layout

STRIPES = 3
CHUNK = 4096
LIMIT = 12 * CHUNK
OFFSETS = st.integers(0, LIMIT) | st.integers(0, 12).map(lambda chunk: chunk * CHUNK)
LENGTHS = st.integers(0, 3 * CHUNK)


class ImageBesideBytearray(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="ckptfs-image-"))
        self.stripes = [self.directory / str(number) for number in range(STRIPES)]
        for stripe in self.stripes:
            (stripe / IMAGES_DIRECTORY).mkdir(parents=True)
        self.model = bytearray()
        self.byte = 0

    @initialize(width=st.integers(1, STRIPES), first=st.integers(0, STRIPES - 1))
    def create(self, width: int, first: int) -> None:
        self.image = Image(3, Layout(CHUNK, width, first % width), self.stripes[:width], new=True)

    def teardown(self) -> None:
        if hasattr(self, "image"):
            self.image.close()
        shutil.rmtree(self.directory)

    @rule(offset=OFFSETS, length=LENGTHS, reserve=st.booleans(), ahead=st.booleans())
    def write(self, offset: int, length: int, reserve: bool, ahead: bool) -> None:
        self.byte = self.byte % 255 + 1
        data = bytes([self.byte]) * length
        if reserve:
            sizes = self.image.lane_sizes()
            self.image.reserve(offset, length, ahead=ahead)
            assert not self.image.needs_reserve(offset, length)
            assert self.image.lane_sizes() == sizes
        self.image.write(offset, data)
        if length:
            self.model.extend(bytes(max(0, offset + length - len(self.model))))
            self.model[offset : offset + length] = data

    @rule(offset=OFFSETS, length=LENGTHS)
    def read(self, offset: int, length: int) -> None:
        expected = bytes(self.model[offset : offset + length]).ljust(length, b"\0")
        assert self.image.read(offset, length) == expected
        target = memoryview(bytearray(length))
        assert not self.image.read_into_nowait(offset, target) or target == expected

    @rule(size=OFFSETS)
    def truncate(self, size: int) -> None:
        self.image.truncate(size)
        del self.model[size:]

    @rule(offset=OFFSETS, length=LENGTHS)
    def punch(self, offset: int, length: int) -> None:
        self.image.punch(offset, length)
        end = min(offset + length, len(self.model))
        if offset < end:
            self.model[offset:end] = bytes(end - offset)

    @precondition(lambda self: self.image.layout.width == 1 and len(self.model) <= CHUNK)
    @rule(width=st.integers(1, STRIPES))
    def widen(self, width: int) -> None:
        self.image.widen(Layout(CHUNK, width, 0), self.stripes[:width])

    @rule()
    def trim(self) -> None:
        self.image.trim()
        assert self.image.allocated_bytes() <= len(self.model) + 2 * STRIPES * 4096

    @rule()
    def sync(self) -> None:
        self.image.sync()
        assert self.image.unsynced() == []

    @rule()
    def reopen(self) -> None:
        self.image.close()
        layout, stripes = self.image.layout, self.image.stripes
        self.image = Image(3, layout, stripes)

    @invariant()
    def everything_is_the_same(self) -> None:
        if hasattr(self, "image"):
            assert self.image.read(0, LIMIT + 4 * CHUNK) == bytes(self.model).ljust(LIMIT + 4 * CHUNK, b"\0")
            assert self.image.layout.size_implied_by(self.image.lane_sizes()) <= len(self.model)


TestImageBesideBytearray = ImageBesideBytearray.TestCase
TestImageBesideBytearray.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
