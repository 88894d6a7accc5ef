"""Base classes of the parts of the configuration.

A `ConfigSection` is mutable; unset fields are None, also on disk, so that new defaults apply to old
repositories. A `PersistedValue`, such as a condition or a container, is frozen and hashable. The
annotations of the fields define their validation and their persisted form.
"""

import copy
import difflib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Final, Generic, Self, TypeVar

from icefloe import display
from icefloe.errors import ErrorKind, InvalidInputError
from icefloe.url_secrets import mask_urls

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """The inclusive range of an integer field."""

    minimum: int
    maximum: int


U8 = Annotated[int, Bounds(0, 2**8 - 1)]
U16 = Annotated[int, Bounds(0, 2**16 - 1)]
U32 = Annotated[int, Bounds(0, 2**32 - 1)]
U64 = Annotated[int, Bounds(0, 2**64 - 1)]
I32 = Annotated[int, Bounds(-(2**31), 2**31 - 1)]
NonZeroU16 = Annotated[int, Bounds(1, 2**16 - 1)]
NonZeroU64 = Annotated[int, Bounds(1, 2**64 - 1)]

REPLACE_ON_MERGE: Final = {"merge": "replace"}
"""Field metadata: a merge replaces the whole section instead of its fields."""

ABSENT_IF_UNSET: Final = {"unset": "absent"}
"""Field metadata: an unset field is omitted instead of written as null; Icechunk lacks it."""

NOT_PERSISTED: Final = {"persisted": False}
"""Field metadata: the field has no entry in the persisted form."""


def convert_with(convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return field metadata: ``convert`` is applied to a value before it is checked."""
    # It returns values that it cannot convert unchanged, and the check rejects them.
    return {"convert": convert}


class Effective(Generic[T]):
    """The value of a field, or its default if unset; a default section is copied on access."""

    def __init__(self, default: T) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._field_name = name.removeprefix("effective_")

    def __get__(self, instance: object, owner: type | None = None) -> T:
        value: T | None = getattr(instance, self._field_name) if instance is not None else None
        if value is not None:
            return value
        return self._default.copy() if isinstance(self._default, ConfigSection) else self._default


class Persisted:
    """Base class of the persisted parts of the configuration."""

    # Not a dataclass: frozen and mutable dataclasses cannot share a dataclass as base.
    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    if typing.TYPE_CHECKING:

        @property
        def unknown(self) -> Mapping[str, Any]:
            """Fields written by a newer version, preserved on save."""

    def __repr__(self) -> str:
        """Show the fields that are set, except those that may hold secrets."""
        values = (
            f"{item.name}={value!r}"
            for item in fields(self)
            if item.repr and (value := getattr(self, item.name)) != _get_default(item)
        )
        return mask_urls(f"{type(self).__qualname__}({', '.join(values)})")


def _get_default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


@dataclass(frozen=True, slots=True, repr=False)
class PersistedValue(Persisted):
    """A frozen, hashable part of the configuration."""

    unknown: Mapping[str, Any] = field(
        default_factory=dict, kw_only=True, repr=False, hash=False, metadata=NOT_PERSISTED
    )

    def __post_init__(self) -> None:
        for name in get_field_types(type(self)):
            _check(type(self), name, getattr(self, name))


@dataclass(slots=True, repr=False)
class ConfigSection(Persisted):
    """A section of optional fields that supports assignment and merging.

    Assignments are validated like constructor arguments: `InvalidInputError` for an invalid value,
    `AttributeError` for an unknown field. A failed assignment changes nothing.
    """

    unknown: Mapping[str, Any] = field(
        default_factory=dict, kw_only=True, repr=False, hash=False, metadata=NOT_PERSISTED
    )

    def __setattr__(self, name: str, value: object) -> None:
        section = type(self)
        item = self.__dataclass_fields__.get(name)
        if item is None:
            matches = difflib.get_close_matches(
                name.removeprefix("effective_"), get_field_types(section)
            )
            hint = (
                f"did you mean {' or '.join(matches)}?"
                if matches
                else f"available: {', '.join(get_field_types(section))}"
            )
            raise AttributeError(f"{section.__name__} has no field {name!r}: {hint}")
        if "convert" in item.metadata:
            value = item.metadata["convert"](value)
        if value is not None and name in get_field_types(section):  # None is always allowed
            _check(section, name, value)
        object.__setattr__(self, name, value)

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        return display.render_config_html(self)

    def copy(self) -> Self:
        """Return a deep copy."""
        copied = object.__new__(type(self))
        for name in self.__dataclass_fields__:
            # The values were checked when they were assigned.
            object.__setattr__(copied, name, _copy_value(getattr(self, name)))
        return copied

    def merge(self, other: Self) -> Self:
        """Return a copy, with the set fields of ``other`` applied recursively.

        Containers, preload and splitting are replaced as a whole.
        """
        merged = self.copy()
        for name, item in other.__dataclass_fields__.items():
            old, new = getattr(merged, name), getattr(other, name)
            if new is None or (name == "unknown" and not new):
                continue
            if name == "unknown":
                changed = {k: v for k, v in new.items() if v is not None or k not in old}
                value: object = {**old, **copy.deepcopy(changed)}
            elif isinstance(old, ConfigSection) and "merge" not in item.metadata:
                value = old.merge(new)
            else:
                value = _copy_value(new)
            object.__setattr__(merged, name, value)
        return merged


def _copy_value(value: Any) -> Any:
    if value is None or type(value) in {bool, int, str}:
        return value
    if type(value) is dict and not value:  # the usual case, in which `deepcopy` takes longer
        return {}
    return value.copy() if isinstance(value, ConfigSection) else copy.deepcopy(value)


def _check(section: type, name: str, value: object) -> None:
    problem = find_problem(get_field_types(section)[name], value)
    if problem is not None:
        raise InvalidInputError(
            f"{section.__name__}.{name}: {problem}", kind=ErrorKind.STORAGE_CONFIG
        )


def get_field_types(section: type) -> Mapping[str, Any]:
    """Return the type of every persisted field of a section, in order."""
    return _get_field_types(section)


@cache
def _get_field_types(section: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(section, include_extras=True)
    return {
        item.name: hints[item.name]
        for item in fields(section)
        if item.metadata.get("persisted", True)
    }


def remove_none(hint: Any) -> Any:
    """Return an optional type without None; other types are returned unchanged."""
    alternatives = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
    return alternatives[0] if is_optional(hint) and len(alternatives) == 1 else hint


def is_optional(hint: Any) -> bool:
    """Whether a type allows None."""
    return types.NoneType in typing.get_args(hint)


def find_problem(hint: Any, value: object) -> str | None:
    """Return why a value does not match an annotation, or None if it matches."""
    if value is None and is_optional(hint):
        return None
    hint = remove_none(hint)
    args = typing.get_args(hint)
    match typing.get_origin(hint):
        case origin if origin is Annotated:
            if type(value) is not int:
                return f"expected an integer, got {_describe(value)}"
            bounds: Bounds = args[1]
            if not bounds.minimum <= value <= bounds.maximum:
                return f"{value} is not between {bounds.minimum} and {bounds.maximum}"
            return None
        case types.UnionType | typing.Union:
            return None if isinstance(value, args) else _describe_mismatch(args, value)
        case origin if origin is tuple:
            if not isinstance(value, tuple):
                return _describe_mismatch([tuple], value)
            if args[-1] is Ellipsis:
                return _find_first_problem((args[0], item) for item in value)
            if len(value) != len(args):
                return f"expected {len(args)} items, got {len(value)}"
            return _find_first_problem(zip(args, value, strict=True))
        case origin if origin is Mapping:
            if not isinstance(value, Mapping):
                return _describe_mismatch([Mapping], value)
            problem = _find_first_problem((args[0], key) for key in value)
            return problem or _find_first_problem((args[1], item) for item in value.values())
        case _:
            return None if isinstance(value, hint) else _describe_mismatch([hint], value)


def _find_first_problem(pairs: Iterable[tuple[Any, object]]) -> str | None:
    return next((p for hint, value in pairs if (p := find_problem(hint, value))), None)


def _describe_mismatch(expected: Iterable[type], value: object) -> str:
    names = " or ".join(kind.__qualname__ for kind in expected)
    return f"expected {names}, got {_describe(value)}"


def _describe(value: object) -> str:
    # Strings are not shown: one may be a misplaced credential.
    return f"{value!r}" if isinstance(value, int | float) else f"a {type(value).__qualname__}"
