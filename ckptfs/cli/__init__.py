"""The ``ckptfs`` command: one file per command. It reads arguments, asks the rooms below, and prints; it decides
nothing.

``main`` turns exceptions into exit statuses, ``consult`` asks a volume with or without its daemon, ``launch`` starts
a daemon and waits for it, ``output`` prints. Heavy imports are made inside the functions that need them, so that
``ckptfs --help`` is quick.
"""
