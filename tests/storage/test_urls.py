"""Redaction of secrets in URLs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icefloe.storage.urls import redact_url, redact_urls


@pytest.mark.parametrize(
    "url, shown",
    [
        ("s3://bucket/a b/é", "s3://bucket/a b/é"),
        ("https://example.org:8080/x", "https://example.org:8080/x"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("example.org:9000", "example.org:9000"),
        ("", ""),
        ("s3://KEY:SECRET@bucket/p", "s3://bucket/p"),
        ("https://example.org/x?sig=SECRET#SECRET", "https://example.org/x"),
        ("https://example.org/x%3Fsig%3DSECRET", "https://example.org/x..."),
        ("ftp://me:SECRET@host/x?sig=SECRET", "ftp://host/x"),
        ("me:SECRET@host", "host"),
        ("s3://KEY:SEC/RET@bucket/p", "s3://..."),
        ("s3://KEY:1/SECRET@bucket/p", "s3://..."),
        ("s3://KEY:SEC?RET@bucket/p", "s3://..."),
        ("s3:/KEY:SECRET@bucket/p", "..."),
        ("http://[bad", "http://..."),
    ],
)
def test_redacted_urls(url: str, shown: str) -> None:
    """Scheme, host, port and path remain; everything that could be a secret is removed."""
    assert redact_url(url) == shown


@given(st.text(alphabet="ab/:?#@%3F[]. ", max_size=12), st.text(alphabet="ab/:?#@[]. ", max_size=6))
def test_passwords_are_redacted(before: str, after: str) -> None:
    """The end of a password, before the ``@``, is always removed."""
    assert "SECRET" not in redact_url(f"s3://me:{before}SECRET@{after}")
    assert "SECRET" not in redact_url(f"https://{after}?{before}SECRET")


def test_urls_in_texts() -> None:
    """Users, passwords and queries are removed, other text stays."""
    text = "GET https://me:SECRET@a.org/b?sig=SECRET, then 'http://c/d%3fsig%3DSECRET' failed"
    assert redact_urls(text) == "GET https://...@a.org/b?..., then 'http://c/d?...' failed"
    response = '<?xml version="1.0"?><Error><Code>InvalidAccessKeyId</Code></Error>'
    assert redact_urls(response) == response
