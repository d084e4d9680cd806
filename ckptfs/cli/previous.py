"""``ckptfs previous``."""

from __future__ import annotations

from pathlib import Path

import click

from ckptfs.cli.arguments import PATH
from ckptfs.errors import NameNotFound
from ckptfs.units import format_size

_EXAMPLES = (
    "\b\n"
    "Examples:\n"
    "  ckptfs previous /checkpoints/run1/latest.pt\n"
    "  ckptfs previous /checkpoints/run1/latest.pt --restore"
)


@click.command(epilog=_EXAMPLES)
@click.argument("path", type=PATH)
@click.option(
    "--restore", is_flag=True, help="Give PATH the latest of them back; what it has now becomes a previous one."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def previous(path: Path, restore: bool, as_json: bool) -> None:
    """Show the contents that PATH had before it was overwritten, replaced by a rename, or removed; latest first."""
    from ckptfs.admin.locate import locate
    from ckptfs.admin.messages import AskPrevious, PreviousReply, RestoredReply, RestorePrevious
    from ckptfs.cli.consult import consult
    from ckptfs.cli.output import print_json, print_table, show_age, show_expiry, show_path

    location = locate(path)
    if restore:
        paths = consult(location, RestorePrevious(location.path), RestoredReply, changes=True).paths
        if as_json:
            print_json({"restored": paths})
        else:
            click.echo(f"restored {', '.join(show_path(one) for one in paths)}")
        return
    versions = consult(location, AskPrevious(location.path), PreviousReply).versions
    if as_json:
        print_json({"path": location.path, "previous": versions})
        return
    if not versions:
        raise NameNotFound(f"nothing earlier of {path} is kept: it was never overwritten, or too long ago")
    rows = [
        [
            format_size(version.size),
            version.state,
            str(version.generation),
            version.kind.replace("_", " "),
            show_age(version.removed_s),
            show_expiry(version.expires_s),
        ]
        for version in versions
    ]
    print_table(["size", "state", "generation", "how", "when", "kept"], rows, right=(0, 2))
