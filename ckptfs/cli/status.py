"""``ckptfs status``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckptfs.cli.arguments import PATH
from ckptfs.units import format_duration, format_size

if TYPE_CHECKING:
    from ckptfs.admin.locate import Location
    from ckptfs.admin.messages import StatusReply


_EXAMPLES = "\b\nExamples:\n  ckptfs status /checkpoints\n  ckptfs status /var/lib/ckptfs --json"


@click.command(epilog=_EXAMPLES)
@click.argument("path", type=PATH, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; sizes in bytes, times in seconds.")
def status(path: Path | None, as_json: bool) -> None:
    """Show a volume: its stripes with space and health, open files, generations by state.

    PATH is in a mount, or is a volume directory. Without it, every mounted volume is shown.
    """
    from ckptfs.admin.locate import locate
    from ckptfs.admin.messages import AskStatus, StatusReply
    from ckptfs.cli.consult import consult
    from ckptfs.cli.output import print_json
    from ckptfs.errors import NotAVolume
    from ckptfs.mount.table import ckptfs_mounts

    if path is None:
        locations: list[Location] = []
        others = "no"
        for mount in ckptfs_mounts():
            if mount.volume_directory is None:
                continue
            location = locate(mount.mountpoint)
            try:
                served = location.is_served
            except PermissionError:
                click.echo(f"{mount.mountpoint}: mounted by another user, who may ask for its status", err=True)
                others = "no other"
                continue
            if served:
                locations.append(location)
            else:
                gone = "its daemon is gone; ckptfs mount replaces it, ckptfs umount ends it"
                click.echo(f"{mount.mountpoint}: {gone}", err=True)
        if not locations:
            raise NotAVolume(f"{others} ckptfs volume is mounted. Name a volume directory, or mount one")
    else:
        locations = [locate(path)]
    if as_json and len(locations) > 1:
        raise click.UsageError("several volumes are mounted; say which: ckptfs status PATH --json")
    for number, location in enumerate(locations):
        reply = consult(location, AskStatus(), StatusReply)
        if as_json:
            print_json(_object(reply))
            continue
        if number:
            click.echo()
        _show(reply)


def _object(reply: StatusReply) -> dict[str, Any]:
    state = reply.status
    return {
        "volume": state.volume,
        "daemon": reply.daemon,
        "stripes": state.stripes,
        "generations": state.generations,
        "bytes": state.bytes,
        "open_files": state.open_files,
    }


def _show(reply: StatusReply) -> None:
    from ckptfs.cli.output import print_fields, print_table

    state, daemon = reply.status, reply.daemon
    counts = state.generations
    extra = ", ".join(
        f"{count} {what}" for what, count in (("torn", counts.torn), ("in quarantine", counts.quarantined)) if count
    )
    served = "not mounted"
    if daemon is not None:
        served = f"{daemon.mountpoint} (pid {daemon.pid}, up {format_duration(daemon.uptime_s)})"
    files = f"{counts.landing} landing, {counts.sealed} sealed, {counts.packed} packed"
    fields = [
        ("volume", f"{state.volume.dir} ({state.volume.id})"),
        ("mounted", served),
        ("contents", f"{files}; {extra}" if extra else files),
        ("size", f"{format_size(state.bytes.raw)} in files, {format_size(state.bytes.stored)} on the stripes"),
        ("open files", f"{state.open_files.total}, {state.open_files.writing} for writing"),
    ]
    print_fields(fields)
    click.echo()
    rows = [
        [
            str(number),
            format_size(stripe.free),
            format_size(stripe.total),
            "healthy" if stripe.healthy else f"failed: {stripe.problem}",
            stripe.path,
        ]
        for number, stripe in enumerate(state.stripes)
    ]
    print_table(["stripe", "free", "of", "health", "path"], rows, right=(0, 1, 2))
