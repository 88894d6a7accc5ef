"""The repository configuration as a tree of plain values, which YAML and FlexBuffers then write.

The reference implementation derives its encodings from its types, so this module does too: the
fields of a section become the entries of a map under their own names, and only sum types need a
table that says how each case is spelled. A case without content is its name; any other is a
`Variant`, which YAML writes as a tag and FlexBuffers as a map of one entry.

Fields that no section knows are kept as they are, in `Persisted.unknown`, and written again.
Whatever the tree, `from_tree` returns a configuration or raises `FormatError` with the path of the
field. A container that breaks the rules for containers is kept, see
`VirtualChunkContainer.from_persisted`: the reference implementation keeps it as well, and neither
reads through it.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.model import manifest_config as manifest
from icefloe.model.config import CompressionAlgorithm, RepositoryConfig
from icefloe.model.config_section import (
    ABSENT_IF_UNSET,
    Persisted,
    field_types,
    is_optional,
    problem_with,
    without_none,
)
from icefloe.model.containers import (
    AnyObjectStoreConfig,
    ChecksumAlgorithm,
    ObjectStoreConfig,
    VirtualChunkContainer,
)

MAX_DEPTH: Final = 100
"""How many containers may stand inside each other: a chain of conditions is all that goes deep."""

P = TypeVar("P", bound=Persisted)


@dataclass(frozen=True, slots=True)
class Variant:
    """A case of a sum type, and what it holds."""

    name: str
    value: Tree


Tree: TypeAlias = "bool | int | float | str | list[Tree] | dict[str, Tree] | Variant | None"


def without_variants(tree: Tree) -> Any:
    """Write each case as a map of one entry, as FlexBuffers and JSON have it."""
    match tree:
        case Variant(name, value):
            return {name: without_variants(value)}
        case dict():
            return {key: without_variants(value) for key, value in tree.items()}
        case list():
            return [without_variants(item) for item in tree]
    return tree


class _Content(Enum):
    """What stands under the name of a case."""

    NOTHING = "nothing"
    ITS_ONE_FIELD = "its one field"
    ALL_FIELDS = "a map of its fields"
    OPTIONS_AND_HEADERS = "a map of options, and the headers among them if there are any"


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    of: Any
    content: _Content


def _case(name: str, of: type[Persisted], content: _Content | None = None) -> _Case:
    if content is None:
        content = _Content.ITS_ONE_FIELD if field_types(of) else _Content.NOTHING
    return _Case(name, of, content)


_SUM_TYPES: Final[Mapping[Any, tuple[_Case, ...]]] = {
    manifest.Bound: (
        _case("Unbounded", manifest.Unbounded),
        _case("Included", manifest.Included),
        _case("Excluded", manifest.Excluded),
    ),
    manifest.ManifestPreloadCondition: (
        _case("or", manifest.PreloadOr),
        _case("and", manifest.PreloadAnd),
        _case("path_matches", manifest.PreloadPathMatches, _Content.ALL_FIELDS),
        _case("name_matches", manifest.PreloadNameMatches, _Content.ALL_FIELDS),
        _case("num_refs", manifest.PreloadNumRefs, _Content.ALL_FIELDS),
        _case("true", manifest.PreloadTrue),
        _case("false", manifest.PreloadFalse),
    ),
    manifest.ManifestSplitCondition: (
        _case("or", manifest.SplitOr),
        _case("and", manifest.SplitAnd),
        _case("path_matches", manifest.SplitPathMatches, _Content.ALL_FIELDS),
        _case("name_matches", manifest.SplitNameMatches, _Content.ALL_FIELDS),
        _case("any_array", manifest.SplitAnyArray),
    ),
    manifest.AnySplitDimCondition: (
        _case("Axis", manifest.ManifestSplitDimCondition.Axis),
        _case("DimensionName", manifest.ManifestSplitDimCondition.DimensionName),
        _case("Any", manifest.ManifestSplitDimCondition.Any),
    ),
    AnyObjectStoreConfig: (
        _case("in_memory", ObjectStoreConfig.InMemory),
        _case("local_file_system", ObjectStoreConfig.LocalFileSystem),
        _case("http", ObjectStoreConfig.Http, _Content.OPTIONS_AND_HEADERS),
        _case("s3_compatible", ObjectStoreConfig.S3Compatible),
        _case("s3", ObjectStoreConfig.S3),
        _case("gcs", ObjectStoreConfig.Gcs),
        _case("azure", ObjectStoreConfig.Azure),
        _case("tigris", ObjectStoreConfig.Tigris),
    ),
}

_CASE_OF: Final[Mapping[Any, _Case]] = {
    case.of: case for cases in _SUM_TYPES.values() for case in cases
}

_ENUM_NAMES: Final[Mapping[Enum, str]] = {
    CompressionAlgorithm.Zstd: "zstd",
    ChecksumAlgorithm.Crc32: "crc32",
    ChecksumAlgorithm.Crc32c: "crc32c",
    ChecksumAlgorithm.Crc64Nvme: "crc64_nvme",
    ChecksumAlgorithm.Sha1: "sha1",
    ChecksumAlgorithm.Sha256: "sha256",
}

_PERSISTED_NAMES: Final = {"from_bound": "from", "to_bound": "to"}


def to_tree(config: RepositoryConfig) -> dict[str, Tree]:
    """Turn a configuration into a tree.

    Every field that Icechunk has is there, unset ones as None; ours are there where they are set.

    Raises
    ------
    InvalidInputError
        If its conditions stand too deep inside each other for a reader.
    """
    return _encode_fields(config, 1)


def from_tree(tree: Tree, *, file: str) -> RepositoryConfig:
    """Turn a tree into a configuration.

    Raises
    ------
    FormatError
        If a known field holds what it cannot hold, or one that must be there is missing.
    """
    return _Decoder(file).fields(RepositoryConfig, tree, "")


def _persisted_names(section: type[Persisted]) -> Mapping[str, str]:
    return {_PERSISTED_NAMES.get(name, name): name for name in field_types(section)}


def _absent_if_unset(section: type[Persisted]) -> frozenset[str]:
    return frozenset(
        item.name for item in fields(section) if item.metadata.items() >= ABSENT_IF_UNSET.items()
    )


def _required_fields(section: type[Persisted]) -> frozenset[str]:
    return frozenset(
        item.name
        for item in fields(section)
        if item.default is MISSING and item.default_factory is MISSING
    )


def _encode(value: Any, depth: int) -> Tree:
    if depth > MAX_DEPTH:
        raise InvalidInputError(
            f"more than {MAX_DEPTH} parts of the configuration inside each other: join conditions "
            "with or_conditions and and_conditions instead of nesting them",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    if isinstance(value, Enum):
        return _ENUM_NAMES[value]
    if isinstance(value, tuple):
        return [_encode(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item, depth + 1) for key, item in value.items()}
    case = _CASE_OF.get(type(value))
    if case is not None:
        return _encode_case(case, value, depth)
    if isinstance(value, Persisted):
        return _encode_fields(value, depth)
    return typing.cast("Tree", value)


def _encode_case(case: _Case, value: Any, depth: int) -> Tree:
    match case.content:
        case _Content.NOTHING:
            return case.name
        case _Content.ITS_ONE_FIELD:
            (name,) = field_types(case.of)
            return Variant(case.name, _encode(getattr(value, name), depth + 1))
        case _Content.ALL_FIELDS:
            return Variant(case.name, _encode_fields(value, depth + 1))
        case _Content.OPTIONS_AND_HEADERS:
            headers: dict[str, Tree] = {"headers": dict(value.headers)} if value.headers else {}
            return Variant(case.name, {**value.opts, **headers})


def _encode_fields(value: Persisted, depth: int) -> dict[str, Tree]:
    names = _persisted_names(type(value))
    known = {
        key: _encode(getattr(value, name), depth + 1)
        for key, name in names.items()
        if getattr(value, name) is not None or name not in _absent_if_unset(type(value))
    }
    return {**known, **{key: item for key, item in value.unknown.items() if key not in known}}


class _Decoder:
    """Turns trees into values of a type; ``path`` is where in the file the tree stands."""

    def __init__(self, file: str) -> None:
        self._file = file

    def _bad(self, path: str, reason: str) -> FormatError:
        where = f"{path}: " if path else ""
        return FormatError(where + reason, file=self._file, kind=ErrorKind.CONFIG_DESERIALIZATION)

    def value(self, hint: Any, tree: Tree, path: str) -> Any:
        if tree is None and is_optional(hint):
            return None
        hint = without_none(hint)
        if hint in _SUM_TYPES:
            return self.case(hint, tree, path)
        match typing.get_origin(hint):
            case origin if origin is tuple:
                return self.items(typing.get_args(hint), tree, path)
            case origin if origin is Mapping:
                _, item_hint = typing.get_args(hint)
                return {
                    key: self.value(item_hint, item, f"{path}[{key!r}]")
                    for key, item in self.entries(tree, path).items()
                }
            case None if issubclass(hint, Persisted):
                return self.fields(hint, tree, path)
            case None if issubclass(hint, Enum):
                return self.member(hint, tree, path)
        problem = problem_with(hint, tree)
        if problem is not None:
            raise self._bad(path, problem)
        return tree

    def entries(self, tree: Tree, path: str) -> dict[str, Tree]:
        if not isinstance(tree, dict):
            raise self._bad(path, f"a map is needed, not {_kind_of(tree)}")
        return tree

    def items(self, hints: tuple[Any, ...], tree: Tree, path: str) -> tuple[Any, ...]:
        if not isinstance(tree, list):
            raise self._bad(path, f"a list is needed, not {_kind_of(tree)}")
        if hints[-1] is Ellipsis:
            hints = (hints[0],) * len(tree)
        elif len(hints) != len(tree):
            raise self._bad(path, f"{len(hints)} items are needed, not {len(tree)}")
        pairs = zip(hints, tree, strict=True)
        return tuple(self.value(h, item, f"{path}[{i}]") for i, (h, item) in enumerate(pairs))

    def member(self, hint: type[Enum], tree: Tree, path: str) -> Enum:
        name = tree.name if isinstance(tree, Variant) and tree.value is None else tree
        for member in hint:
            if _ENUM_NAMES[member] == name:
                return member
        names = ", ".join(_ENUM_NAMES[member] for member in hint)
        raise self._bad(path, f"one of {names} is needed, not {_shown(tree)}")

    def fields(self, section: type[P], tree: Tree, path: str) -> P:
        names, hints = _persisted_names(section), field_types(section)
        known: dict[str, Any] = {}
        unknown: dict[str, Tree] = {}
        for key, item in self.entries(tree, path).items():
            if key in names:
                field_path = f"{path}.{key}" if path else key
                known[names[key]] = self.value(hints[names[key]], item, field_path)
            else:
                unknown[key] = item
        for missing in sorted(_required_fields(section) - known.keys()):
            raise self._bad(path, f"{_PERSISTED_NAMES.get(missing, missing)} is missing")
        if issubclass(section, VirtualChunkContainer):
            return section.from_persisted(**known, unknown=unknown)
        make: Callable[..., P] = section
        return make(**known, unknown=unknown)

    def case(self, hint: Any, tree: Tree, path: str) -> Any:
        content: Tree
        match tree:
            case str(name):
                content = None
            case Variant(name, content):
                pass
            case dict() if len(tree) == 1:
                ((name, content),) = tree.items()
            case _:
                raise self._bad(path, f"a case is needed, not {_kind_of(tree)}")
        case = next((case for case in _SUM_TYPES[hint] if case.name == name), None)
        if case is None:
            names = ", ".join(case.name for case in _SUM_TYPES[hint])
            raise self._bad(path, f"one of {names} is needed, not {_shown(name)}")
        path = f"{path}.{name}"
        match case.content:
            case _Content.NOTHING:
                if content is not None:
                    raise self._bad(path, f"nothing is needed, not {_kind_of(content)}")
                return case.of()
            case _Content.ITS_ONE_FIELD:
                ((field_name, field_hint),) = field_types(case.of).items()
                return case.of(**{field_name: self.value(field_hint, content, path)})
            case _Content.ALL_FIELDS:
                return self.fields(case.of, content, path)
            case _Content.OPTIONS_AND_HEADERS:
                opts = dict(self.entries(content, path))
                headers = opts.pop("headers", {})
                return case.of(
                    opts=self.value(Mapping[str, str], opts, path),
                    headers=self.value(Mapping[str, str], headers, f"{path}.headers"),
                )


def _kind_of(tree: Tree) -> str:
    match tree:
        case None:
            return "nothing"
        case dict():
            return "a map"
        case list():
            return "a list"
        case Variant(name):
            return f"the case {_shown(name)}"
        case str():
            return "a string"
    return repr(tree)


def _shown(tree: Tree) -> str:
    return repr(tree[:40]) if isinstance(tree, str) else _kind_of(tree)
