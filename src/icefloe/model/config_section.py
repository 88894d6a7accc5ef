"""What all sections of the repository configuration have in common.

A section is a frozen dataclass. Every field that may be unset is None then, and stays None on disk,
so that a later change of a default reaches old repositories. The annotations are the one source of
truth: they are checked when a section is made, and the persisted form is derived from them.

No I/O, and nothing about how a configuration is written.
"""

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Annotated, Any, Final, Generic, Self, TypeVar

from icefloe.errors import ErrorKind, InvalidInputError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Between:
    """The integers that a field can hold in the persisted form, both ends included."""

    smallest: int
    largest: int


U8 = Annotated[int, Between(0, 2**8 - 1)]
U16 = Annotated[int, Between(0, 2**16 - 1)]
U32 = Annotated[int, Between(0, 2**32 - 1)]
U64 = Annotated[int, Between(0, 2**64 - 1)]
I32 = Annotated[int, Between(-(2**31), 2**31 - 1)]
NonZeroU16 = Annotated[int, Between(1, 2**16 - 1)]
NonZeroU64 = Annotated[int, Between(1, 2**64 - 1)]

REPLACED_WHOLE: Final = {"merge": "replace"}
"""Field metadata: in a merge the other's section replaces this one, leaf by leaf makes no sense."""


class Effective(Generic[T]):
    """The value of a field, or the default that applies where the field is unset."""

    def __init__(self, field_name: str, default: T) -> None:
        self._field_name = field_name
        self._default = default

    def __get__(self, instance: object, owner: type | None = None) -> T:
        value: T | None = getattr(instance, self._field_name) if instance is not None else None
        return self._default if value is None else value


@dataclass(frozen=True, slots=True)
class Persisted:
    """A part of the configuration that stands in the repository.

    Attributes
    ----------
    unknown
        What a newer writer put into this section and this version has no field for. It is kept so
        that saving the configuration again loses nobody's settings.
    """

    unknown: Mapping[str, Any] = field(
        default_factory=dict, kw_only=True, repr=False, hash=False, metadata={"persisted": False}
    )

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            problem = problem_with(hint, getattr(self, name))
            if problem is not None:
                raise InvalidInputError(
                    f"{type(self).__name__}.{name}: {problem}", kind=ErrorKind.STORAGE_CONFIG
                )


@dataclass(frozen=True, slots=True)
class ConfigSection(Persisted):
    """A section whose fields are all optional, so that two can be laid over each other."""

    def merge(self, other: Self) -> Self:
        """Lay ``other`` over this section: what is set there wins, leaf by leaf.

        Containers, preload and splitting are replaced as wholes.
        """
        merged: dict[str, Any] = {}
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if item.name == "unknown":
                set_by_other = {k: v for k, v in theirs.items() if v is not None or k not in mine}
                merged[item.name] = {**mine, **set_by_other}
            elif theirs is None or mine is None:
                merged[item.name] = mine if theirs is None else theirs
            elif isinstance(mine, ConfigSection) and "merge" not in item.metadata:
                merged[item.name] = mine.merge(theirs)
            else:
                merged[item.name] = theirs
        return replace(self, **merged)


def field_types(section: type) -> Mapping[str, Any]:
    """Get the type of every persisted field of a section, in the order of the fields."""
    return _field_types(section)


@cache
def _field_types(section: Any) -> Mapping[str, Any]:
    hints = typing.get_type_hints(section, include_extras=True)
    return {
        item.name: hints[item.name]
        for item in fields(section)
        if item.metadata.get("persisted", True)
    }


def without_none(hint: Any) -> Any:
    """Take the None out of a union of one type and None."""
    alternatives = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
    return alternatives[0] if is_optional(hint) and len(alternatives) == 1 else hint


def is_optional(hint: Any) -> bool:
    """Whether None is among the values of a type."""
    return types.NoneType in typing.get_args(hint)


def problem_with(hint: Any, value: object) -> str | None:
    """Say why a value is not of the annotated type, or None where it is."""
    if value is None and is_optional(hint):
        return None
    hint = without_none(hint)
    args = typing.get_args(hint)
    match typing.get_origin(hint):
        case origin if origin is Annotated:
            if type(value) is not int:
                return f"an integer is needed, not {_shown(value)}"
            bounds: Between = args[1]
            if not bounds.smallest <= value <= bounds.largest:
                return f"{value} is not between {bounds.smallest} and {bounds.largest}"
            return None
        case types.UnionType | typing.Union:
            return None if isinstance(value, args) else _wrong_type(args, value)
        case origin if origin is tuple:
            if not isinstance(value, tuple):
                return _wrong_type([tuple], value)
            if args[-1] is Ellipsis:
                return _first_problem((args[0], item) for item in value)
            if len(value) != len(args):
                return f"{len(args)} items are needed, not {len(value)}"
            return _first_problem(zip(args, value, strict=True))
        case origin if origin is Mapping:
            if not isinstance(value, Mapping):
                return _wrong_type([Mapping], value)
            keys = _first_problem((args[0], key) for key in value)
            return keys or _first_problem((args[1], item) for item in value.values())
        case _:
            return None if isinstance(value, hint) else _wrong_type([hint], value)


def _first_problem(pairs: Iterable[tuple[Any, object]]) -> str | None:
    return next((p for hint, value in pairs if (p := problem_with(hint, value))), None)


def _wrong_type(expected: Iterable[type], value: object) -> str:
    names = " or ".join(kind.__qualname__ for kind in expected)
    return f"{names} is needed, not {_shown(value)}"


def _shown(value: object) -> str:
    # Never the value of a string: it may be a credential that slipped into the wrong place.
    return f"{value!r}" if isinstance(value, int | float) else f"a {type(value).__qualname__}"
