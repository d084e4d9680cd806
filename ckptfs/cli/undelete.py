"""``ckptfs undelete``."""

from __future__ import annotations

from pathlib import Path

import click

from ckptfs.cli.arguments import PATH
from ckptfs.errors import NameNotFound
from ckptfs.units import format_size

_EXAMPLES = "\b\nExamples:\n  ckptfs undelete /checkpoints/run1/step_500.pt\n  ckptfs undelete /checkpoints/run1 --list"


@click.command(epilog=_EXAMPLES)
@click.argument("path", type=PATH)
@click.option("--list", "only_list", is_flag=True, help="Only show what could come back.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def undelete(path: Path, only_list: bool, as_json: bool) -> None:
    """Bring back PATH, a file or directory that was removed, or what was removed from the directory PATH.

    Possible within the undelete window of the volume (volume.toml), unless the space was needed.
    """
    from ckptfs.admin.locate import locate
    from ckptfs.admin.messages import AskRemoved, RemovedReply, RestoredReply, Undelete
    from ckptfs.cli.consult import consult
    from ckptfs.cli.output import print_json, print_table, show_age, show_expiry, show_path

    location = locate(path)
    if not only_list:
        paths = consult(location, Undelete(location.path), RestoredReply, changes=True).paths
        if as_json:
            print_json({"restored": paths})
        elif not paths:
            raise NameNotFound(f"nothing that was removed from {path} is kept any more")
        else:
            for one in paths:
                click.echo(f"restored {show_path(one)}")
        return
    names = consult(location, AskRemoved(location.path), RemovedReply).names
    if as_json:
        print_json({"removed": names})
        return
    if not names:
        raise NameNotFound(f"nothing that was removed from {path} is kept any more")
    rows = [
        [
            "directory" if name.is_directory else format_size(name.size),
            show_age(name.removed_s),
            show_expiry(name.expires_s),
            show_path(name.path),
        ]
        for name in names
    ]
    print_table(["size", "removed", "kept", "path"], rows, right=(0,))
