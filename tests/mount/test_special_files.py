"""Pipes, sockets and device nodes, programs, and who watches a directory."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import socket
import stat
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.system import errno_of

if TYPE_CHECKING:
    from pathlib import Path

_IN_MOVED_TO = 0x80
_IN_CLOSE_WRITE = 0x8


def test_a_named_pipe_carries_bytes(place: Path) -> None:
    """S-special-files."""
    os.mkfifo(place / "p")
    assert stat.S_ISFIFO((place / "p").lstat().st_mode)
    writer = threading.Thread(target=(place / "p").write_bytes, args=(b"through the pipe",), daemon=True)
    writer.start()
    assert (place / "p").read_bytes() == b"through the pipe"
    writer.join()


def test_a_socket_is_bound_and_answers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)  # a socket's path has 107 bytes at most
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind("s")
        server.listen()
        assert stat.S_ISSOCK((place / "s").lstat().st_mode)
        client.connect("s")
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"hello")
            assert client.recv(5) == b"hello"
    with socket.socket(socket.AF_UNIX) as again:
        assert errno_of(again.bind, "s") == errno.EADDRINUSE
    (place / "s").unlink()


@pytest.mark.root
def test_a_device_node_is_kept_and_not_opened(on_mount: Path) -> None:
    """S-special-files."""
    os.mknod(on_mount / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(on_mount / "block", stat.S_IFBLK | 0o600, os.makedev(259, 70_000))
    assert (on_mount / "null").stat().st_rdev == os.makedev(1, 3)
    found = (on_mount / "block").stat()
    assert (stat.S_IFMT(found.st_mode), found.st_rdev) == (stat.S_IFBLK, os.makedev(259, 70_000))
    assert errno_of(os.open, on_mount / "null", os.O_RDONLY) == errno.EACCES  # mounted nodev


def test_mknod_makes_a_regular_file(place: Path) -> None:
    os.mknod(place / "f", stat.S_IFREG | 0o644)
    (place / "f").write_text("x")
    assert (place / "f").read_text() == "x"


def test_a_program_runs_from_the_mount(place: Path) -> None:
    program = shutil.which("echo")
    assert program is not None
    shutil.copy(program, place / "program")
    done = subprocess.run([place / "program", "runs"], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "runs\n"


def test_a_watcher_sees_files_closed_and_moved_into_place(place: Path) -> None:
    """S-inotify."""
    libc = ctypes.CDLL(None, use_errno=True)
    watcher = libc.inotify_init1(os.O_NONBLOCK)
    try:
        assert libc.inotify_add_watch(watcher, os.fsencode(place), _IN_MOVED_TO | _IN_CLOSE_WRITE) > 0
        (place / "x.tmp").write_text("1")
        (place / "x.tmp").rename(place / "final")
        assert select.select([watcher], [], [], 10)[0]
        assert b"final" in os.read(watcher, 4096)
    finally:
        os.close(watcher)
