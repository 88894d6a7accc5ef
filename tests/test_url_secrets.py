"""Secrets in URLs are found, and masked in text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.url_secrets import mask_url, mask_urls


@pytest.mark.parametrize(
    "url, shown",
    [
        ("s3://KEY:SECRET@bucket/p", "s3://...@bucket/p"),
        ("https://SECRET@host:80/p", "https://...@host:80/p"),
        ("s3://KEY:SEC/RET@bucket/p", "s3://...@bucket/p"),
        ("s3://KEY:1/SECRET@bucket/p", "s3://...@bucket/p"),
        ("s3://KEY:SEC?RET@bucket/p", "s3://...@bucket/p"),
        ("https://me:SECRET", "https://..."),
        ("https://host/x?X-Amz-Signature=SECRET", "https://host/x?..."),
        ("https://me:SECRET@host/x?sig=SECRET#SECRET", "https://...@host/x?..."),
        (
            "abfs://me:SECRET@account.dfs.core.windows.net/p",
            "abfs://...@account.dfs.core.windows.net/p",
        ),
    ],
)
def test_secrets_are_masked(url: str, shown: str) -> None:
    """The scheme, the host and the path remain, in the URL alone and in a text."""
    assert mask_url(url) == shown
    assert mask_urls(url) == shown
    assert mask_urls(f"a '{url}': no, ({url}), {url}.") == f"a '{shown}': no, ({shown}), {shown}."


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/a@b/c?d*",
        "http://[::1]:80/a@b",
        "http://127.0.0.1:80",
        "https://host/x?page=1#top",
        "abfs://container@account.dfs.core.windows.net/p",
        "file:///home/me:you@host/?sig=x",
        "vcc://name/me@host",
        "me@host",
        "",
    ],
)
def test_other_urls_are_unchanged(url: str) -> None:
    """Paths may contain what looks like a user, and a container of Azure is none."""
    assert mask_url(url) == url
    assert mask_urls(f"{url}: no such object ({url})") == f"{url}: no such object ({url})"


@given(st.text(max_size=9), st.text(alphabet="ab/:?#@[]. ", max_size=6))
def test_passwords_are_masked(before: str, after: str) -> None:
    """Whatever a password contains, it is removed from a URL."""
    assert "SECRET" not in mask_url(f"s3://me:{before}SECRET@{after}")
