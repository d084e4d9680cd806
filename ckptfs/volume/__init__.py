"""One open volume: the files being written, names, sealing, space, recovery.

Owns everything between the kernel's requests and what is at rest: ``volume.py`` puts the parts together and is what the mount and the
admin server call. A byte's way: ``handles.py`` (an open file) → ``live.py`` (accepted, buffered, written to lanes) → ``seal.py`` (made
durable). Names are transactions (``namespace.py``). What names lose is kept (``meta/removals.py``), had back (``history.py``), freed
(``space.py`` decides when, ``reclaim.py`` how). After a crash, ``recovery.py``. A mount starts with ``format.py``,
``stripes.py``, ``instance.py`` and ``lock.py``.

Must not know: FUSE, errno, the admin API, and how a lane stores a byte.
"""
