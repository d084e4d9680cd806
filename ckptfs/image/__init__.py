"""Images: the local, raw, striped copies of file generations.

The room owns the lane files under ``<stripe>/images/``: what they are called (:mod:`~ckptfs.image.files`), where a byte
of a file lies (:mod:`~ckptfs.image.layout`), one lane (:mod:`~ckptfs.image.lane`), the lanes of one image as one run of
bytes (:mod:`~ckptfs.image.image`), and which stripes the next image uses (:mod:`~ckptfs.image.placement`). Nearly every
call may block; callers make them in threads.

It must not know names, inodes, generations, sizes of files as programs see them, the metadata, FUSE or the event loop.
Whether a write is allowed, when to flush, and when an image may go, is decided above.
"""

from ckptfs.image.files import IMAGES_DIRECTORY, list_lanes, unlink_image
from ckptfs.image.image import Image
from ckptfs.image.layout import Layout, Span
from ckptfs.image.placement import Placement

__all__ = ["IMAGES_DIRECTORY", "Image", "Layout", "Placement", "Span", "list_lanes", "unlink_image"]
