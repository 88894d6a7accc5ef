"""Copies between roots that do not transfer bytes: links on one disk, requests in one bucket."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from icefloe.errors import ObjectNotFoundError, StorageError
from icefloe.storage import LocalStorage, MemoryStorage, ObjectStorage, s3_storage
from icefloe.storage.same_root import is_nested, is_same_root
from support.counting_storage import CountingStorage

if TYPE_CHECKING:
    from pathlib import Path

    from support.servers import S3Server


def test_link(tmp_path: Path) -> None:
    """A file of another directory is linked, and stays when one of both is deleted."""
    source, target = LocalStorage(tmp_path / "a"), LocalStorage(tmp_path / "b")
    source.put("c/1", b"content")
    assert target.copy_from(source, "c/1", "chunks/2")
    assert (tmp_path / "a/c/1").stat().st_ino == (tmp_path / "b/chunks/2").stat().st_ino
    source.delete_many(["c/1"])
    assert bytes(target.get("chunks/2").data) == b"content"


def test_link_again(tmp_path: Path) -> None:
    """A file that exists already is kept."""
    source, target = LocalStorage(tmp_path / "a"), LocalStorage(tmp_path / "b")
    source.put("1", b"content")
    assert target.copy_from(source, "1", "1")
    assert target.copy_from(source, "1", "1")
    assert bytes(target.get("1").data) == b"content"


def test_link_to_other_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files cannot be linked, nothing is written, and the caller copies the bytes."""
    source, target = LocalStorage(tmp_path / "a"), LocalStorage(tmp_path / "b")
    source.put("1", b"content")

    def link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, "cross-device link")

    monkeypatch.setattr(os, "link", link)
    assert not target.copy_from(source, "1", "1")
    assert list(target.list()) == []


def test_links_of_symbolic_links(tmp_path: Path) -> None:
    """A symbolic link in an untrusted source is not followed, and not copied."""
    source, target = LocalStorage(tmp_path / "a"), LocalStorage(tmp_path / "b")
    source.put("1", b"content")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "a" / "2").symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError, match="symbolic link"):
        target.copy_from(source, "2", "2")
    assert list(target.list()) == []


def test_missing_source(tmp_path: Path) -> None:
    """A missing object raises as a get does."""
    source, target = LocalStorage(tmp_path / "a"), LocalStorage(tmp_path / "b")
    with pytest.raises(ObjectNotFoundError):
        target.copy_from(source, "1", "1")


def test_other_kinds(tmp_path: Path) -> None:
    """Storages of different kinds cannot copy without transferring bytes."""
    local, memory = LocalStorage(tmp_path), MemoryStorage()
    local.put("1", b"content")
    assert not memory.copy_from(local, "1", "1")
    assert not local.copy_from(memory, "1", "2")
    assert [info.key for info in local.list()] == ["1"]


def test_forwarded(tmp_path: Path) -> None:
    """A forwarding storage forwards the copy as one write, from a forwarding source too."""
    source = CountingStorage(LocalStorage(tmp_path / "a"))
    target = CountingStorage(LocalStorage(tmp_path / "b"))
    source.put("1", b"content")
    assert target.copy_from(source, "1", "1")
    assert bytes(target.get("1").data) == b"content"


def _open_s3(server: S3Server, prefix: str, key_id: str | None = None) -> ObjectStorage:
    return s3_storage(
        bucket=server.bucket,
        prefix=prefix,
        endpoint_url=server.endpoint_url,
        allow_http=True,
        region="us-east-1",
        access_key_id=key_id or server.access_key_id,
        secret_access_key=server.secret_access_key,
    )


def test_server_copy(s3_server: S3Server) -> None:
    """Prefixes of one bucket copy on the server; other credentials do not."""
    source, target = _open_s3(s3_server, "copies/a"), _open_s3(s3_server, "copies/b")
    source.put("c/1", b"content")
    assert target.copy_from(source, "c/1", "chunks/2")
    assert bytes(target.get("chunks/2").data) == b"content"
    with pytest.raises(ObjectNotFoundError):
        target.copy_from(source, "c/missing", "chunks/3")
    assert not target.copy_from(_open_s3(s3_server, "copies/a", "other"), "c/1", "chunks/4")


def test_same_root(tmp_path: Path, s3_server: S3Server) -> None:
    """Roots are compared by address, whatever their settings, credentials and symbolic links."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    local = LocalStorage(tmp_path / "a")
    assert is_same_root(local, CountingStorage(LocalStorage(tmp_path / "link", durable=False)))
    assert not is_same_root(local, LocalStorage(tmp_path / "b"))
    memory = MemoryStorage()
    assert is_same_root(memory, memory)
    assert not is_same_root(memory, MemoryStorage())
    s3 = _open_s3(s3_server, "copies/a")
    assert is_same_root(s3, _open_s3(s3_server, "copies/a", "other"))
    assert not is_same_root(s3, _open_s3(s3_server, "copies/b"))
    aws = s3_storage(bucket=s3_server.bucket, prefix="copies/a", region="us-east-1")
    assert not is_same_root(s3, aws)


def test_nested_roots(tmp_path: Path, s3_server: S3Server) -> None:
    """A root below another one is found in both directions, also through symbolic links."""
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    local = LocalStorage(tmp_path / "a")
    below = CountingStorage(LocalStorage(tmp_path / "link" / "b" / "c"))
    assert is_nested(local, below)
    assert is_nested(below, local)
    for name in ("a", "ab", "b"):
        assert not is_nested(local, LocalStorage(tmp_path / name))
    s3 = _open_s3(s3_server, "copies/a")
    for prefix in ("copies/a/b", "copies/a/b/", "copies", ""):
        other = _open_s3(s3_server, prefix, "other")
        assert is_nested(s3, other)
        assert is_nested(other, s3)
    for prefix in ("copies/a", "copies/ab", "copies/b", "b/copies/a"):
        assert not is_nested(s3, _open_s3(s3_server, prefix))
    aws = s3_storage(bucket=s3_server.bucket, prefix="copies/a/b", region="us-east-1")
    assert not is_nested(s3, aws)
    memory = MemoryStorage()
    assert not is_nested(memory, memory)
    assert not is_nested(memory, local)
