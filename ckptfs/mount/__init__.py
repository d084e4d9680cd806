"""The FUSE side: what the kernel asks is turned into calls on a volume, and what comes back into answers.

``contract`` says what a volume must offer, ``operations`` is the one translation, ``errno`` the only place that knows
error numbers, ``handles`` the open files, ``session`` mounts and serves, ``table`` and ``holders`` read what the kernel
says about mounts. The room knows nothing of images, stripes or metadata.
"""
