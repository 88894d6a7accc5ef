"""YAML codec of the configuration: the file ``config.yaml`` of generation v1.

Icechunk writes YAML 1.2, where an unquoted ``yes`` is a string; in YAML 1.1, which PyYAML
implements, it is a boolean. This module therefore uses only the parser and emitter of PyYAML,
resolves scalars by the rules of YAML 1.2, and quotes strings that are ambiguous in either version.

The file is untrusted: parsing is iterative, limits size and depth, and rejects anchors and aliases,
which no writer uses and which could expand a small file exponentially.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

import yaml

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.format.config_tree import MAX_DEPTH, Tree, Variant, from_tree, to_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icefloe.model.config import RepositoryConfig

MAX_SIZE_BYTES: Final = 4 * 1024 * 1024
"""Enough for more than ten thousand virtual chunk containers."""

# libyaml if available; the YAML parser of Icechunk is a port of it.
_PARSER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL: Final = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL: Final = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_DECIMAL: Final = re.compile(r"[-+]?(0|[1-9][0-9]{0,38})")
_RADIX: Final = re.compile(r"([-+]?)(0x[0-9a-fA-F]{1,32}|0o[0-7]{1,43}|0b[01]{1,128})")
_FLOAT: Final = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT: Final = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9]+")

_STANDARD_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final = re.compile(r"[A-Za-z_]([A-Za-z0-9_./-]|:(?=[A-Za-z0-9_./-]))*")
_NEVER_PLAIN: Final = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))


class _Emitter(yaml.SafeDumper):
    """The emitter of PyYAML, changed to leave tagged numbers unquoted."""

    def choose_scalar_style(self) -> Any:
        event: Any = self.event
        if event.tag is not None and event.style is None:
            return ""  # the plain style
        return super().choose_scalar_style()


def loads(data: bytes | memoryview, *, file: str = "config.yaml") -> RepositoryConfig:
    """Decode a ``config.yaml``; raise `FormatError` if it is invalid."""
    return from_tree(_parse(bytes(data), file=file), file=file)


def dumps(config: RepositoryConfig) -> bytes:
    """Encode a configuration as ``config.yaml``.

    Raises `InvalidInputError` if the configuration is too large or too deeply nested, or has values
    that are not JSON.
    """
    events = _iter_document(to_tree(config))
    # The emitter folds lines that are longer than the width.
    text: str = yaml.emit(events, Dumper=_Emitter, allow_unicode=True, width=2**20)
    data = text.encode()
    if len(data) > MAX_SIZE_BYTES:
        raise _encoding_error(f"it takes {len(data)} bytes; the limit is {MAX_SIZE_BYTES}")
    return data


def _yaml_error(reason: str, file: str) -> FormatError:
    return FormatError(reason, file=file, kind=ErrorKind.CONFIG_DESERIALIZATION)


def _encoding_error(reason: str) -> InvalidInputError:
    return InvalidInputError(
        f"this configuration cannot be stored: {reason}", kind=ErrorKind.STORAGE_CONFIG
    )


def _parse(data: bytes, *, file: str) -> Tree:
    if len(data) > MAX_SIZE_BYTES:
        raise _yaml_error(f"the file has {len(data)} bytes; the limit is {MAX_SIZE_BYTES}", file)
    try:
        return _Builder(file).build(yaml.parse(data.decode(), Loader=_PARSER))
    except yaml.YAMLError as error:
        # The message of the error is not shown: it quotes the line, which may contain secrets.
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise _yaml_error(f"not YAML{where}: {getattr(error, 'problem', None)}", file) from error
    except ValueError as error:
        raise _yaml_error("not valid UTF-8 YAML", file) from error


class _Collection:
    """A map or list under construction; ``key`` is the key of a map that has no value yet."""

    __slots__ = ("key", "tag", "value")

    def __init__(self, value: dict[str, Tree] | list[Tree], tag: str | None) -> None:
        self.value = value
        self.tag = tag
        self.key: str | None = None


class _Builder:
    """Builds one tree from the events of a document."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._stack: list[_Collection] = []
        self._roots: list[Tree] = []

    def build(self, events: Iterator[Any]) -> Tree:
        for event in events:
            if getattr(event, "anchor", None) is not None:
                raise self._make_error(event, "anchors and aliases are not allowed")
            match event:
                case yaml.ScalarEvent():
                    self._add_scalar(event)
                case yaml.MappingStartEvent():
                    self._start_collection({}, event)
                case yaml.SequenceStartEvent():
                    self._start_collection([], event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    collection = self._stack.pop()
                    self._add(_apply_tag(collection.tag, collection.value), event)
        if len(self._roots) != 1:
            raise _yaml_error(f"expected one document, got {len(self._roots)}", self._file)
        return self._roots[0]

    def _make_error(self, event: Any, reason: str) -> FormatError:
        mark = event.start_mark
        return _yaml_error(f"line {mark.line + 1}, column {mark.column + 1}: {reason}", self._file)

    def _start_collection(self, value: dict[str, Tree] | list[Tree], event: Any) -> None:
        if self._expects_key():
            raise self._make_error(event, "a key must be a string")
        if len(self._stack) == MAX_DEPTH:
            raise self._make_error(event, f"nested more than {MAX_DEPTH} levels deep")
        kind = "map" if isinstance(value, dict) else "seq"
        self._stack.append(_Collection(value, self._parse_tag(event, (kind,))))

    def _expects_key(self) -> bool:
        if not self._stack:
            return False
        collection = self._stack[-1]
        return isinstance(collection.value, dict) and collection.key is None

    def _add_scalar(self, event: Any) -> None:
        tag = self._parse_tag(event, ("str", "null", "bool", "int", "float"))
        if self._expects_key():
            collection = self._stack[-1]
            if tag is not None or event.value in collection.value:
                raise self._make_error(event, "a key must be a unique, untagged string")
            collection.key = event.value
            return
        # A local tag does not make a plain scalar a string: `!Axis 0` contains a number.
        is_plain = not event.style and event.tag not in ("!", f"{_STANDARD_TAG}str")
        self._add(_apply_tag(tag, _resolve(event.value) if is_plain else event.value), event)

    def _parse_tag(self, event: Any, standard_names: tuple[str, ...]) -> str | None:
        """Return the name of a local tag, which is that of a `Variant`; None for standard tags."""
        tag = event.tag
        if tag in (None, "!") or tag in [_STANDARD_TAG + name for name in standard_names]:
            return None
        if not tag.startswith("!"):
            raise self._make_error(event, "unknown tag")
        return str(tag[1:])

    def _add(self, value: Tree, event: Any) -> None:
        if not self._stack:
            self._roots.append(value)
            return
        collection = self._stack[-1]
        if isinstance(collection.value, list):
            collection.value.append(value)
        elif collection.key is None:
            raise self._make_error(event, "a key must be a string")
        else:
            collection.value[collection.key] = value
            collection.key = None


def _apply_tag(tag: str | None, value: Tree) -> Tree:
    return value if tag is None else Variant(tag, value)


def _resolve(text: str) -> Tree:
    """Resolve a plain scalar as Icechunk does: by YAML 1.2, plus binary integers."""
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _DECIMAL.fullmatch(text):
        return int(text)
    if _RADIX.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) and not _LEADING_ZERO.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else text
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def _iter_document(tree: Tree) -> Iterator[Any]:
    yield yaml.StreamStartEvent()
    yield yaml.DocumentStartEvent(explicit=False)
    yield from _iter_events(tree, None, 1)
    yield yaml.DocumentEndEvent(explicit=False)
    yield yaml.StreamEndEvent()


def _iter_events(tree: Tree, tag: str | None, depth: int) -> Iterator[Any]:
    if depth > MAX_DEPTH + 1:  # scalars are one level below the innermost map or list
        raise _encoding_error(f"nested more than {MAX_DEPTH} levels deep")
    is_untagged = tag is None
    match tree:
        case Variant(name, value) if is_untagged and re.fullmatch(r"[A-Za-z0-9_-]+", name):
            yield from _iter_events(value, f"!{name}", depth)
        case dict():
            yield yaml.MappingStartEvent(None, tag, is_untagged, flow_style=not tree)
            for key, value in tree.items():
                if not isinstance(key, str):
                    raise _encoding_error("a key is not a string")
                yield _make_text_event(key, None)
                yield from _iter_events(value, None, depth + 1)
            yield yaml.MappingEndEvent()
        case list():
            yield yaml.SequenceStartEvent(None, tag, is_untagged, flow_style=not tree)
            for item in tree:
                yield from _iter_events(item, None, depth + 1)
            yield yaml.SequenceEndEvent()
        case str():
            yield _make_text_event(tree, tag)
        case None | bool() | int() | float():
            yield yaml.ScalarEvent(None, tag, (is_untagged, False), _format_scalar(tree))
        case _:
            raise _encoding_error(f"a {type(tree).__qualname__} is not JSON")


def _make_text_event(text: str, tag: str | None) -> Any:
    is_plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _NEVER_PLAIN
    if not is_plain and not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text):
        raise _encoding_error("a string has a lone surrogate")
    style = None if is_plain else '"'
    return yaml.ScalarEvent(None, tag, (is_plain and tag is None, tag is None), text, style=style)


def _format_scalar(value: float | None) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return repr(value)
