"""A filesystem for deep-learning checkpoints.

A *volume* is mounted as a normal directory. What programs write lands at the speed of the local NVMe devices, striped
over all of them, and survives what ``docs/crash-consistency.md`` says it survives.

Packages, from the top down; imports go down only (``lint-imports`` checks it):

``cli``
    one file per command; prints, never decides
``admin``
    the control socket: server, client, typed messages
``mount``
    FUSE: kernel requests in, errno out
``volume``
    what a filesystem does: names, inodes, landing, seal, removal, recovery
``meta`` | ``image``
    the database | the striped files
``config``, ``faults``, ``errors``, ``units``
    small things everyone uses
"""

__version__ = "0.1.0"
