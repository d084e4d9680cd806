"""``python -m ckptfs`` is the ``ckptfs`` command."""

from __future__ import annotations

from ckptfs.cli.main import main

if __name__ == "__main__":
    main()
