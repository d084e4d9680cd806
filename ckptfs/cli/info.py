"""``ckptfs info``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckptfs.cli.arguments import PATH
from ckptfs.units import format_size

if TYPE_CHECKING:
    from ckptfs.volume.reports import FileInfo


_EXAMPLES = "\b\nExamples:\n  ckptfs info /checkpoints/run1/step_1000.pt\n  ckptfs info /checkpoints/run1 --json"


@click.command(epilog=_EXAMPLES)
@click.argument("path", type=PATH)
@click.option("--json", "as_json", is_flag=True, help='Print one JSON object; for a directory, {"files": [...]}.')
def info(path: Path, as_json: bool) -> None:
    """Show how a file is stored: state, generation, chunks, and the stripes that it lies on.

    A directory stands for all files below it. While nothing is mounted, name files through the volume directory.
    """
    from ckptfs.admin.locate import locate
    from ckptfs.admin.messages import AskInfo, InfoReply
    from ckptfs.cli.consult import consult
    from ckptfs.cli.output import print_json

    location = locate(path)
    files = consult(location, AskInfo(location.path), InfoReply).files
    single = len(files) == 1 and files[0].path == location.path
    if as_json:
        print_json(files[0] if single else {"files": files})
    elif single:
        _show(files[0])
    else:
        _list(files)


def _show(file: FileInfo) -> None:
    from ckptfs.cli.output import print_fields, print_table, show_path

    print_fields(
        [
            ("path", show_path(file.path)),
            ("size", f"{format_size(file.size)} ({file.size} bytes)"),
            ("state", _state(file)),
            ("generation", str(file.generation)),
            ("chunks", f"{file.chunks} of {format_size(file.chunk_size)}, {file.present} present"),
            ("width", f"{file.width} stripe(s)"),
        ]
    )
    if file.lanes:
        click.echo()
        rows = [[str(lane.stripe), str(lane.size), lane.path] for lane in file.lanes]
        print_table(["stripe", "bytes", "lane"], rows, right=(0, 1))


def _list(files: list[FileInfo]) -> None:
    from ckptfs.cli.output import print_table, show_path

    rows = [
        [
            format_size(file.size),
            _state(file),
            str(file.generation),
            str(file.width),
            f"{file.present}/{file.chunks}",
            show_path(file.path),
        ]
        for file in files
    ]
    print_table(["size", "state", "generation", "width", "chunks", "path"], rows, right=(0, 2, 3, 4))


def _state(file: FileInfo) -> str:
    return f"{file.state}, torn (its last writer did not close it)" if file.torn else file.state
