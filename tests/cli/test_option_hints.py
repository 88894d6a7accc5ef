"""Options replace the Python arguments that errors suggest."""

from __future__ import annotations

import pytest

from icefloe.cli.option_hints import suggest_options


@pytest.mark.parametrize(
    "message, expected",
    [
        ('exclude them with on_error="skip"', "exclude them with --on-error skip"),
        (
            'use changed="replace" or changed="keep", and insert=True',
            "use --changed replace or --changed keep, and --insert",
        ),
        ("copy the values with virtual=False", "copy the values with --native"),
        ("create one with create=True", "create one with --create"),
        ("small jobs run with spark=None", "small jobs run with --no-spark"),
        (
            "not empty: go, open the repository if it is one, or pass check_clean_root=False",
            "not empty: go",
        ),
        (
            "add containers=['s3://a/', 'file:///b/']",
            "add --container s3://a/ --container file:///b/",
        ),
        (
            "open it with authorize_virtual_chunk_access={'s3://a/': Credentials.S3(None)}",
            "open it with --container s3://a/",
        ),
        ("parse with drop_variables=['snow']", "parse with --drop snow"),
        (
            "read variables='rain,t2m' over (time)",
            "read --variable rain --variable t2m over (time)",
        ),
        (
            "pass containers=[VirtualChunkContainer(…)]",
            "pass containers=[VirtualChunkContainer(…)]",
        ),
        (
            "chunks (max_chunks): lower task_bytes, or partition_by: unknown column",
            "chunks (--max-chunks): lower --task-bytes, or --partition-by: unknown column",
        ),
        ("/task_bytes and my_task_bytes stay", "/task_bytes and my_task_bytes stay"),
        ("pass loadable_variables=['a']", "pass loadable_variables=['a']"),
    ],
)
def test_arguments_become_options(message: str, expected: str) -> None:
    """Each argument with an option is replaced; others stay."""
    assert suggest_options(message) == expected
