"""``ckptfs doctor``."""

from __future__ import annotations

import click

from ckptfs import faults

_EXAMPLES = "\b\nExample:\n  ckptfs doctor --faults"


@click.command(epilog=_EXAMPLES)
@click.option("--faults", "list_faults", is_flag=True, help="List the fault points that tests can turn on.")
def doctor(list_faults: bool) -> None:
    """Show what helps to test and debug ckptfs itself."""
    from ckptfs.cli.output import print_table

    if not list_faults:
        raise click.UsageError("say what to show: --faults")
    print_table(["point", "reached"], [[point, meaning] for point, meaning in sorted(faults.POINTS.items())])
