from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptfs.image import Layout, Placement


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    width = draw(st.integers(1, 9))
    return Layout(draw(st.integers(1, 64)), width, draw(st.integers(0, width - 1)))


sizes = st.integers(0, 5000)


@given(layouts(), sizes, st.integers(0, 2000))
def test_spans_cover_a_range_in_order_and_without_gaps(layout: Layout, offset: int, length: int) -> None:
    position = offset
    for span in layout.spans(offset, length):
        assert span.offset == position
        assert span.length > 0
        position += span.length
    assert position == offset + length


@given(layouts(), sizes)
def test_every_byte_lies_where_the_design_says(layout: Layout, offset: int) -> None:
    (span,) = layout.spans(offset, 1)
    chunk = offset // layout.chunk_size
    assert span.lane == (layout.first + chunk) % layout.width
    assert span.lane_offset == chunk // layout.width * layout.chunk_size + offset % layout.chunk_size


@given(layouts(), sizes)
def test_lane_sizes_add_up_to_the_file(layout: Layout, size: int) -> None:
    lane_sizes = [layout.lane_size(lane, size) for lane in range(layout.width)]
    assert sum(lane_sizes) == size
    filled = [0] * layout.width
    for span in layout.spans(0, size):
        filled[span.lane] = max(filled[span.lane], span.lane_offset + span.length)
    assert lane_sizes == filled


@given(layouts(), sizes)
def test_size_implied_by_lane_sizes_is_the_inverse(layout: Layout, size: int) -> None:
    assert layout.size_implied_by([layout.lane_size(lane, size) for lane in range(layout.width)]) == size


@given(layouts(), sizes)
def test_the_prefix_that_full_lanes_hold_is_the_whole_file(layout: Layout, size: int) -> None:
    assert layout.prefix_held_by([layout.lane_size(lane, size) for lane in range(layout.width)]) == size


def test_the_prefix_that_lanes_hold_ends_at_the_first_gap() -> None:
    assert Layout(8, 3, 0).prefix_held_by([16, 2, 8]) == 10
    assert Layout(8, 3, 0).prefix_held_by([16, 8, 8]) == 32
    assert Layout(8, 2, 0).prefix_held_by([0, 8]) == 0


@given(layouts(), sizes, st.integers(1, 2000))
def test_a_range_of_the_file_is_one_range_of_each_lane(layout: Layout, offset: int, length: int) -> None:
    for lane in range(layout.width):
        spans = [span for span in layout.spans(offset, length) if span.lane == lane]
        start, end = layout.lane_size(lane, offset), layout.lane_size(lane, offset + length)
        assert sum(span.length for span in spans) == end - start
        if spans:
            assert spans[0].lane_offset == start


def test_a_range_of_a_width_1_image_is_one_span() -> None:
    assert len(list(Layout(8, 1, 0).spans(3, 10_000))) == 1


def test_holes_at_the_end_of_a_file_are_not_counted() -> None:
    assert Layout(8, 3, 0).size_implied_by([8, 2, 0]) == 10
    assert Layout(8, 3, 0).size_implied_by([0, 0, 0]) == 0


@pytest.mark.parametrize("shape", [(0, 1, 0), (8, 0, 0), (8, 2, 2), (8, 2, -1)])
def test_a_layout_that_cannot_be_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no such layout"):
        Layout(*shape)


def test_stripes_take_turns() -> None:
    placement = Placement(3, None)
    assert [placement.next_first() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_auto_gives_all_stripes_to_a_file_written_alone_and_one_to_each_of_several() -> None:
    placement = Placement(4, None)
    assert placement.stripes_for(2, 0) == (2, 3, 0, 1)
    assert placement.stripes_for(2, 1) == (2,)


def test_a_fixed_width_holds_however_many_write_and_is_bounded_by_the_stripes() -> None:
    assert Placement(4, 2).stripes_for(3, 5) == (3, 0)
    assert Placement(2, 8).stripes_for(1, 0) == (1, 0)
