"""Which stripes the next image lies on.

``auto`` gives a file written alone all stripes; while several files are written at once each gets one stripe, and the
stripes take turns: then every device serves one sequential stream. A number fixes the width. It is decided when a file
grows past its first chunk (:meth:`~ckptfs.image.image.Image.widen`): before that an image has width 1, and which
files are written at once is not known yet.
"""

from __future__ import annotations

import itertools


class Placement:
    """Deals out stripes. ``width`` is the configured number of stripes for one image, ``None`` for ``auto``.

    Safe to call from several threads.
    """

    def __init__(self, stripe_count: int, width: int | None) -> None:
        if stripe_count <= 0 or (width is not None and width <= 0):
            raise ValueError(f"cannot place images at width {width} on {stripe_count} stripes")
        self._stripe_count = stripe_count
        self._width = width
        self._turns = itertools.count()

    def next_first(self) -> int:
        """The stripe of the next image's chunk 0: the stripes take turns."""
        return next(self._turns) % self._stripe_count

    def width_for(self, other_writers: int) -> int:
        """How many stripes a file that grows past its first chunk gets, while ``other_writers`` files are written."""
        if self._width is not None:
            return min(self._width, self._stripe_count)
        return 1 if other_writers > 0 else self._stripe_count

    def stripes_for(self, first: int, other_writers: int) -> tuple[int, ...]:
        """The stripe of each lane of such a file, lane 0 on stripe ``first``; the layout with it has ``first=0``."""
        return tuple((first + lane) % self._stripe_count for lane in range(self.width_for(other_writers)))
