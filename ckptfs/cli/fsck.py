"""``ckptfs fsck``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckptfs.cli.arguments import PATH
from ckptfs.errors import VolumeInUse
from ckptfs.units import format_size

if TYPE_CHECKING:
    from ckptfs.volume.reports import FsckReport

_DAMAGE_FOUND = 5


_EXAMPLES = "\b\nExamples:\n  ckptfs fsck /var/lib/ckptfs\n  ckptfs fsck /var/lib/ckptfs --repair"


@click.command(epilog=_EXAMPLES)
@click.argument("directory", type=PATH)
@click.option("--repair", is_flag=True, help="Repair what is inconsistent; throws nothing away.")
@click.option("--restore", is_flag=True, help="Put what is in quarantine back under free names.")
@click.option("--discard", is_flag=True, help="Free what is in quarantine. It cannot be had back.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def fsck(context: click.Context, directory: Path, repair: bool, restore: bool, discard: bool, as_json: bool) -> None:
    """Check the volume in DIRECTORY, which must not be mounted, and list what is in quarantine.

    Exit status 5 when damage was found and not repaired.
    """
    from ckptfs.admin.locate import locate
    from ckptfs.cli.output import print_json
    from ckptfs.volume.fsck import check
    from ckptfs.volume.lock import read_holder
    from ckptfs.volume.reports import FsckMode

    asked = [name for name, on in (("repair", repair), ("restore", restore), ("discard", discard)) if on]
    if len(asked) > 1:
        raise click.UsageError(f"--{asked[0]} and --{asked[1]} are two runs: do one, look, then the other")
    location = locate(directory)
    holder = read_holder(location.directory)
    if holder is not None:
        advice = f"ckptfs umount {holder.mountpoint}" if holder.mountpoint else "wait for it to end"
        raise VolumeInUse(f"{location.directory} is in use by {holder}, and a check needs it at rest: {advice}")
    report = check(location.directory, FsckMode(asked[0] if asked else "check"))
    if as_json:
        print_json(report)
    else:
        _show(report)
    if any(not damage.repaired for damage in report.damage):
        context.exit(_DAMAGE_FOUND)


def _show(report: FsckReport) -> None:
    from ckptfs.cli.output import print_table, show_age, show_path

    for damage in report.damage:
        where = f"{show_path(damage.path)}: " if damage.path is not None else ""
        click.echo(f"{'repaired' if damage.repaired else 'DAMAGE'}: {where}{damage.detail}")
    for path in report.restored:
        click.echo(f"restored from quarantine: {show_path(path)}")
    if report.discarded:
        click.echo(f"discarded from quarantine: {report.discarded}")
    if report.quarantine:
        click.echo("in quarantine (--restore brings it back, --discard frees it):")
        rows = [
            [
                format_size(file.size),
                str(file.generation),
                show_age(file.quarantined_s),
                show_path(file.path),
                file.reason,
            ]
            for file in report.quarantine
        ]
        print_table(["size", "generation", "since", "path", "reason"], rows, right=(0, 1))
    checked = f"{report.inodes_checked} inodes, {report.generations_checked} contents, {report.lanes_checked} lanes"
    left = sum(not damage.repaired for damage in report.damage)
    click.echo(f"checked {checked}: {f'{left} damaged' if left else 'sound'}")
