"""``ckptfs mkfs``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckptfs.cli.arguments import PATH, to_size, to_width

if TYPE_CHECKING:
    from ckptfs.config import Width


_EXAMPLES = "\b\nExample:\n  ckptfs mkfs /var/lib/ckptfs --stripe /nvme0/ckptfs --stripe /nvme1/ckptfs"


@click.command(epilog=_EXAMPLES)
@click.argument("directory", type=PATH)
@click.option(
    "--stripe", "stripes", type=PATH, multiple=True, metavar="DIR", help="A directory for data; once for each device."
)
@click.option(
    "--chunk-size",
    callback=to_size,
    default="8MiB",
    show_default=True,
    metavar="SIZE",
    help="Unit of striping, a power of two.",
)
@click.option(
    "--width",
    callback=to_width,
    default="auto",
    show_default=True,
    metavar="auto|N",
    help="Over how many stripes one file is laid.",
)
@click.option(
    "--reserve",
    callback=to_size,
    default=None,
    metavar="SIZE",
    help="Space to leave free on each stripe.  [default: 2%]",
)
def mkfs(directory: Path, stripes: tuple[Path, ...], chunk_size: int, width: Width, reserve: int | None) -> None:
    """Make a volume in DIRECTORY, which must be empty or missing.

    Without --stripe its data is kept in DIRECTORY too. The settings are in DIRECTORY/volume.toml, which explains them.
    """
    from ckptfs.volume.format import format_volume

    config = format_volume(directory, stripes, chunk_size=chunk_size, width=width, reserve_bytes=reserve)
    click.echo(f"made volume {config.volume.id} in {directory} over {len(config.stripes)} stripe(s)")
    click.echo(f"mount it with: ckptfs mount {directory} MOUNTPOINT")
