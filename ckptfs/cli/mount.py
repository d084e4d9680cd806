"""``ckptfs mount``."""

from __future__ import annotations

from pathlib import Path

import click

from ckptfs.cli.arguments import PATH

_EXAMPLES = (
    "\b\n"
    "Examples:\n"
    "  ckptfs mount /var/lib/ckptfs /checkpoints\n"
    "  ckptfs mount /var/lib/ckptfs /checkpoints -o ro,allow_other"
)


@click.command(epilog=_EXAMPLES)
@click.argument("directory", type=PATH)
@click.argument("mountpoint", type=PATH)
@click.option("-o", "options", multiple=True, metavar="OPTION,...", help="ro, allow_other, uid=N, gid=N, umask=N, ...")
@click.option("--foreground", is_flag=True, help="Serve in this process and log to stderr, for service managers.")
@click.option("--ready-fd", type=int, default=None, hidden=True)
@click.pass_context
def mount(
    context: click.Context,
    directory: Path,
    mountpoint: Path,
    options: tuple[str, ...],
    foreground: bool,
    ready_fd: int | None,
) -> None:
    """Mount the volume in DIRECTORY on MOUNTPOINT, an empty directory.

    Returns when the mount is ready, or says why it is not. An empty or missing DIRECTORY becomes a volume with default
    settings. A mountpoint left dead by a killed daemon is replaced. The daemon logs to DIRECTORY/ckptfs.log.
    """
    from ckptfs.cli.launch import serve_here, start_daemon
    from ckptfs.mount.options import MountOptions

    text = ",".join(options)
    parsed = MountOptions.parse(text)
    if foreground:
        serve_here(directory, mountpoint, parsed, ready_fd=ready_fd)
    else:
        context.exit(start_daemon(directory, mountpoint, text))
