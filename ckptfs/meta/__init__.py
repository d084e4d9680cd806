"""Metadata: what the volume knows of names, inodes, generations and images, in one SQL database.

Owns the schema (``schema.py`` explains every table and column), the database file and its durability (``database.py``), and
the queries, functions named for what they answer or record, each taking the connection of the transaction it is part of.
Must not know: FUSE, lanes and devices, or why a caller asks; which changes belong in one transaction is decided in ``volume``.
"""
