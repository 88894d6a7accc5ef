"""The configuration as a tree of plain values, which YAML and FlexBuffers encode.

Like Icechunk, this module derives the encoding from the types: a section becomes a map of its
fields. Tables are needed only for the variants of sum types, enum members and two renamed fields. A
variant without content becomes its name; any other becomes a `Variant`, which is a tag in YAML and
a map of one entry in FlexBuffers.

`Persisted.unknown` preserves unknown fields. For any tree, `from_tree` returns a configuration or
raises `FormatError` with the path of the field. Invalid containers are preserved but never used, as
in Icechunk; see `VirtualChunkContainer.from_persisted`.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

from icefloe.errors import ErrorKind, FormatError, InvalidInputError
from icefloe.model import manifest_config as manifest
from icefloe.model.config import RepositoryConfig
from icefloe.model.config_section import (
    ABSENT_IF_UNSET,
    Persisted,
    find_problem,
    get_field_types,
    is_optional,
    remove_none,
)
from icefloe.model.containers import (
    AnyObjectStoreConfig,
    ObjectStoreConfig,
    VirtualChunkContainer,
)

MAX_DEPTH: Final = 100
"""The maximum nesting depth; only conditions nest deeply."""

P = TypeVar("P", bound=Persisted)


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant of a sum type, with its content."""

    name: str
    value: Tree


Tree: TypeAlias = "bool | int | float | str | list[Tree] | dict[str, Tree] | Variant | None"


def flatten_variants(tree: Tree) -> Any:
    """Convert each variant to a map of one entry, as in FlexBuffers and JSON."""
    match tree:
        case Variant(name, value):
            return {name: flatten_variants(value)}
        case dict():
            return {key: flatten_variants(value) for key, value in tree.items()}
        case list():
            return [flatten_variants(item) for item in tree]
    return tree


class _ContentKind(Enum):
    """How the content of a variant is encoded."""

    NOTHING = "nothing"
    SINGLE_FIELD = "the value of its only field"
    ALL_FIELDS = "a map of its fields"
    OPTIONS_AND_HEADERS = "a map of its options, with the headers as one more entry if set"


@dataclass(frozen=True, slots=True)
class _VariantSpec:
    name: str
    cls: Any
    content_kind: _ContentKind


def _make_variant_spec(
    name: str, cls: type[Persisted], content_kind: _ContentKind | None = None
) -> _VariantSpec:
    if content_kind is None:
        has_fields = bool(get_field_types(cls))
        content_kind = _ContentKind.SINGLE_FIELD if has_fields else _ContentKind.NOTHING
    return _VariantSpec(name, cls, content_kind)


_SUM_TYPES: Final[Mapping[Any, tuple[_VariantSpec, ...]]] = {
    manifest.Bound: (
        _make_variant_spec("Unbounded", manifest.Unbounded),
        _make_variant_spec("Included", manifest.Included),
        _make_variant_spec("Excluded", manifest.Excluded),
    ),
    manifest.ManifestPreloadCondition: (
        _make_variant_spec("or", manifest.PreloadOr),
        _make_variant_spec("and", manifest.PreloadAnd),
        _make_variant_spec("path_matches", manifest.PreloadPathMatches, _ContentKind.ALL_FIELDS),
        _make_variant_spec("name_matches", manifest.PreloadNameMatches, _ContentKind.ALL_FIELDS),
        _make_variant_spec("num_refs", manifest.PreloadNumRefs, _ContentKind.ALL_FIELDS),
        _make_variant_spec("true", manifest.PreloadTrue),
        _make_variant_spec("false", manifest.PreloadFalse),
    ),
    manifest.ManifestSplitCondition: (
        _make_variant_spec("or", manifest.SplitOr),
        _make_variant_spec("and", manifest.SplitAnd),
        _make_variant_spec("path_matches", manifest.SplitPathMatches, _ContentKind.ALL_FIELDS),
        _make_variant_spec("name_matches", manifest.SplitNameMatches, _ContentKind.ALL_FIELDS),
        _make_variant_spec("any_array", manifest.SplitAnyArray),
    ),
    manifest.AnySplitDimCondition: (
        _make_variant_spec("Axis", manifest.ManifestSplitDimCondition.Axis),
        _make_variant_spec("DimensionName", manifest.ManifestSplitDimCondition.DimensionName),
        _make_variant_spec("Any", manifest.ManifestSplitDimCondition.Any),
    ),
    AnyObjectStoreConfig: (
        _make_variant_spec("in_memory", ObjectStoreConfig.InMemory),
        _make_variant_spec("local_file_system", ObjectStoreConfig.LocalFileSystem),
        _make_variant_spec("http", ObjectStoreConfig.Http, _ContentKind.OPTIONS_AND_HEADERS),
        _make_variant_spec("s3_compatible", ObjectStoreConfig.S3Compatible),
        _make_variant_spec("s3", ObjectStoreConfig.S3),
        _make_variant_spec("gcs", ObjectStoreConfig.Gcs),
        _make_variant_spec("azure", ObjectStoreConfig.Azure),
        _make_variant_spec("tigris", ObjectStoreConfig.Tigris),
    ),
}

_VARIANTS_BY_TYPE: Final[Mapping[Any, _VariantSpec]] = {
    spec.cls: spec for specs in _SUM_TYPES.values() for spec in specs
}

# By name, because members of different enumerations are equal to the same integers.
_ENUM_NAMES: Final = {
    "Zstd": "zstd",
    "Crc32": "crc32",
    "Crc32c": "crc32c",
    "Crc64Nvme": "crc64_nvme",
    "Sha1": "sha1",
    "Sha256": "sha256",
}

_PERSISTED_NAMES: Final = {"from_bound": "from", "to_bound": "to"}


def to_tree(config: RepositoryConfig) -> dict[str, Tree]:
    """Encode a configuration as a tree; raise `InvalidInputError` if it is nested too deeply.

    Fields that Icechunk knows are always present, as None if unset; other fields are present only
    if set.
    """
    return _encode_fields(config, 1)


def from_tree(tree: Tree, *, file: str) -> RepositoryConfig:
    """Decode a tree; raise `FormatError` if a field is invalid or a required one is missing."""
    return _Decoder(file).decode_fields(RepositoryConfig, tree, "")


def _map_persisted_to_field_names(section: type[Persisted]) -> Mapping[str, str]:
    return {_PERSISTED_NAMES.get(name, name): name for name in get_field_types(section)}


def _find_fields_omitted_if_unset(section: type[Persisted]) -> frozenset[str]:
    return frozenset(
        item.name for item in fields(section) if item.metadata.items() >= ABSENT_IF_UNSET.items()
    )


def _find_required_fields(section: type[Persisted]) -> frozenset[str]:
    return frozenset(
        item.name
        for item in fields(section)
        if item.default is MISSING and item.default_factory is MISSING
    )


def _encode(value: Any, depth: int) -> Tree:
    if depth > MAX_DEPTH:
        raise InvalidInputError(
            f"the configuration is nested more than {MAX_DEPTH} levels deep: pass a list of "
            "conditions to one call of or_conditions() or and_conditions() instead of nesting "
            "calls",
            kind=ErrorKind.STORAGE_CONFIG,
        )
    if isinstance(value, Enum):
        return _ENUM_NAMES[value.name]
    if isinstance(value, tuple):
        return [_encode(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item, depth + 1) for key, item in value.items()}
    spec = _VARIANTS_BY_TYPE.get(type(value))
    if spec is not None:
        return _encode_variant(spec, value, depth)
    if isinstance(value, Persisted):
        return _encode_fields(value, depth)
    return typing.cast("Tree", value)


def _encode_variant(spec: _VariantSpec, value: Any, depth: int) -> Tree:
    match spec.content_kind:
        case _ContentKind.NOTHING:
            return spec.name
        case _ContentKind.SINGLE_FIELD:
            (name,) = get_field_types(spec.cls)
            return Variant(spec.name, _encode(getattr(value, name), depth + 1))
        case _ContentKind.ALL_FIELDS:
            return Variant(spec.name, _encode_fields(value, depth + 1))
        case _ContentKind.OPTIONS_AND_HEADERS:
            headers: dict[str, Tree] = {"headers": dict(value.headers)} if value.headers else {}
            return Variant(spec.name, {**value.opts, **headers})


def _encode_fields(value: Persisted, depth: int) -> dict[str, Tree]:
    names = _map_persisted_to_field_names(type(value))
    known = {
        key: _encode(getattr(value, name), depth + 1)
        for key, name in names.items()
        if getattr(value, name) is not None
        or name not in _find_fields_omitted_if_unset(type(value))
    }
    return {**known, **{key: item for key, item in value.unknown.items() if key not in known}}


class _Decoder:
    """Decodes trees to values of a type; ``path`` is the path of the tree in the file."""

    def __init__(self, file: str) -> None:
        self._file = file

    def _make_error(self, path: str, reason: str) -> FormatError:
        where = f"{path}: " if path else ""
        return FormatError(where + reason, file=self._file, kind=ErrorKind.CONFIG_DESERIALIZATION)

    def decode(self, hint: Any, tree: Tree, path: str) -> Any:
        if tree is None and is_optional(hint):
            return None
        hint = remove_none(hint)
        if hint in _SUM_TYPES:
            return self.decode_variant(hint, tree, path)
        match typing.get_origin(hint):
            case origin if origin is tuple:
                return self.decode_items(typing.get_args(hint), tree, path)
            case origin if origin is Mapping:
                _, item_hint = typing.get_args(hint)
                return {
                    key: self.decode(item_hint, item, f"{path}[{key!r}]")
                    for key, item in self.require_map(tree, path).items()
                }
            case None if issubclass(hint, Persisted):
                return self.decode_fields(hint, tree, path)
            case None if issubclass(hint, Enum):
                return self.decode_member(hint, tree, path)
        problem = find_problem(hint, tree)
        if problem is not None:
            raise self._make_error(path, problem)
        return tree

    def require_map(self, tree: Tree, path: str) -> dict[str, Tree]:
        if not isinstance(tree, dict):
            raise self._make_error(path, f"expected a map, got {_describe(tree)}")
        return tree

    def decode_items(self, hints: tuple[Any, ...], tree: Tree, path: str) -> tuple[Any, ...]:
        if not isinstance(tree, list):
            raise self._make_error(path, f"expected a list, got {_describe(tree)}")
        if hints[-1] is Ellipsis:
            hints = (hints[0],) * len(tree)
        elif len(hints) != len(tree):
            raise self._make_error(path, f"expected {len(hints)} items, got {len(tree)}")
        pairs = zip(hints, tree, strict=True)
        return tuple(self.decode(h, item, f"{path}[{i}]") for i, (h, item) in enumerate(pairs))

    def decode_member(self, hint: type[Enum], tree: Tree, path: str) -> Enum:
        # In YAML a member may also be written as an empty tag, such as ``!zstd``.
        name = tree.name if isinstance(tree, Variant) and tree.value is None else tree
        for member in hint:
            if _ENUM_NAMES[member.name] == name:
                return member
        names = ", ".join(_ENUM_NAMES[member.name] for member in hint)
        raise self._make_error(path, f"expected one of: {names}; got {_quote(tree)}")

    def decode_fields(self, section: type[P], tree: Tree, path: str) -> P:
        names, hints = _map_persisted_to_field_names(section), get_field_types(section)
        known: dict[str, Any] = {}
        unknown: dict[str, Tree] = {}
        for key, item in self.require_map(tree, path).items():
            if key in names:
                field_path = f"{path}.{key}" if path else key
                known[names[key]] = self.decode(hints[names[key]], item, field_path)
            else:
                unknown[key] = item
        required = _find_required_fields(section) - known.keys()
        missing = sorted(key for key, name in names.items() if name in required)
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise self._make_error(path, f"{', '.join(missing)} {verb} missing")
        if issubclass(section, VirtualChunkContainer):
            return section.from_persisted(**known, unknown=unknown)
        make: Callable[..., P] = section
        return make(**known, unknown=unknown)

    def decode_variant(self, hint: Any, tree: Tree, path: str) -> Any:
        specs = {spec.name: spec for spec in _SUM_TYPES[hint]}
        expected = f"expected one of: {', '.join(specs)}"
        content: Tree
        match tree:
            case str(name):
                content = None
            case Variant(name, content):
                pass
            case dict() if len(tree) == 1:
                ((name, content),) = tree.items()
            case _:
                raise self._make_error(path, f"{expected}; got {_describe(tree)}")
        spec = specs.get(name)
        if spec is None:
            raise self._make_error(path, f"{expected}; got {_quote(name)}")
        path = f"{path}.{name}"
        match spec.content_kind:
            case _ContentKind.NOTHING:
                if content is not None:
                    raise self._make_error(path, f"expected no value, got {_describe(content)}")
                return spec.cls()
            case _ContentKind.SINGLE_FIELD:
                ((field_name, field_hint),) = get_field_types(spec.cls).items()
                return spec.cls(**{field_name: self.decode(field_hint, content, path)})
            case _ContentKind.ALL_FIELDS:
                return self.decode_fields(spec.cls, content, path)
            case _ContentKind.OPTIONS_AND_HEADERS:
                opts = dict(self.require_map(content, path))
                headers = opts.pop("headers", {})
                return spec.cls(
                    opts=self.decode(Mapping[str, str], opts, path),
                    headers=self.decode(Mapping[str, str], headers, f"{path}.headers"),
                )


def _describe(tree: Tree) -> str:
    match tree:
        case None:
            return "nothing"
        case dict():
            return "a map"
        case list():
            return "a list"
        case Variant(name):
            return f"the variant {_quote(name)}"
        case str():
            return "a string"
    return repr(tree)


def _quote(tree: Tree) -> str:
    return repr(tree[:40]) if isinstance(tree, str) else _describe(tree)
