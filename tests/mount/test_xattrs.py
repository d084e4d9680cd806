"""Extended attributes: the user's own, those of root, and those in which ckptfs tells how a file is doing."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.support.system import errno_of

if TYPE_CHECKING:
    from pathlib import Path


def test_attributes_are_kept_as_they_were_set(place: Path) -> None:
    """S-xattrs."""
    file = place / "f"
    file.touch()
    values = {"user.a": b"", "user.step": b"12", "user.é": bytes(range(256)), "user." + "n" * 250: b"long name"}
    for name, value in values.items():
        os.setxattr(file, name, value)
    assert {name: os.getxattr(file, name) for name in os.listxattr(file)} == values
    os.setxattr(file, "user.step", b"13")
    assert os.getxattr(file, "user.step") == b"13"
    os.removexattr(file, "user.step")
    assert errno_of(os.getxattr, file, "user.step") == errno.ENODATA
    assert len(os.listxattr(file)) == len(values) - 1


def test_flags_say_whether_an_attribute_must_be_there(place: Path) -> None:
    (place / "f").touch()
    assert errno_of(os.setxattr, place / "f", "user.q", b"1", os.XATTR_REPLACE) == errno.ENODATA
    os.setxattr(place / "f", "user.q", b"1", os.XATTR_CREATE)
    assert errno_of(os.setxattr, place / "f", "user.q", b"2", os.XATTR_CREATE) == errno.EEXIST
    os.setxattr(place / "f", "user.q", b"3", os.XATTR_REPLACE)
    assert os.getxattr(place / "f", "user.q") == b"3"
    assert errno_of(os.removexattr, place / "f", "user.no") == errno.ENODATA


def test_attributes_go_with_the_inode(place: Path) -> None:
    (place / "f").touch()
    (place / "g").touch()
    os.setxattr(place / "f", "user.step", b"12")
    os.link(place / "f", place / "second")
    (place / "f").rename(place / "g")
    assert os.getxattr(place / "g", "user.step") == b"12"
    assert os.getxattr(place / "second", "user.step") == b"12"
    (place / "g").unlink()
    (place / "g").touch()
    assert os.listxattr(place / "g") == []


def test_directories_have_attributes_and_symbolic_links_do_not(place: Path) -> None:
    os.setxattr(place, "user.d", b"1")
    assert os.getxattr(place, "user.d") == b"1"
    (place / "l").symlink_to("x")
    assert errno_of(os.setxattr, place / "l", "user.x", b"", follow_symlinks=False) == errno.EPERM


def test_a_copy_takes_attributes_along(place: Path) -> None:
    (place / "f").write_text("x")
    os.setxattr(place / "f", "user.step", b"12")
    shutil.copy2(place / "f", place / "g")
    assert os.getxattr(place / "g", "user.step") == b"12"


@pytest.mark.root
def test_trusted_attributes_are_for_root(place: Path) -> None:
    """S-xattrs."""
    (place / "f").touch()
    os.setxattr(place / "f", "trusted.t", b"1")
    assert os.getxattr(place / "f", "trusted.t") == b"1"


@pytest.mark.parametrize("name", ["security.capability", "system.posix_acl_access", "security.selinux"])
def test_other_namespaces_are_not_supported(on_mount: Path, name: str) -> None:
    """S-xattr-namespaces."""
    (on_mount / "f").touch()
    assert errno_of(os.getxattr, on_mount / "f", name) == errno.EOPNOTSUPP
    assert errno_of(os.setxattr, on_mount / "f", name, b"\2\0\0\0") in {errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM}


def test_a_file_says_its_state_and_the_answer_cannot_be_set_or_copied(on_mount: Path) -> None:
    """S-own-xattrs."""
    with open(on_mount / "f", "wb") as file:
        file.write(b"x" * 1000)
        file.flush()
        assert os.getxattr(on_mount / "f", "user.ckptfs.state") == b"landing"
        os.fsync(file.fileno())
        assert os.getxattr(on_mount / "f", "user.ckptfs.state") == b"sealed"
        file.write(b"y")
        file.flush()
        assert os.getxattr(on_mount / "f", "user.ckptfs.state") == b"landing"
    assert os.getxattr(on_mount / "f", "user.ckptfs.remote") == b"0"
    assert os.listxattr(on_mount / "f") == []
    assert errno_of(os.setxattr, on_mount / "f", "user.ckptfs.state", b"sealed") == errno.EPERM
