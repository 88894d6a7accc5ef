"""What all parts of the repository configuration have in common.

A part is a dataclass, of one of two kinds. A `ConfigSection` is assigned to field by field; every
field that is unset is None, and stays None on disk, so that a later change of a default reaches old
repositories. A `PersistedValue`, such as a condition or a container, is frozen and can be a key.
The annotations are the one source of truth: a field never holds what its annotation does not
allow, and the persisted form is derived from them.

No I/O, and nothing about how a configuration is written.
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

ABSENT_IF_UNSET: Final = {"unset": "absent"}
"""Field metadata: where it is unset, not even a null is written; files stay as Icechunk's."""

NOT_A_FIELD_ON_DISK: Final = {"persisted": False}
"""Field metadata: it has no entry of its own in the persisted form."""


def convert_with(convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Make field metadata: what is assigned goes through ``convert`` before it is checked.

    ``convert`` returns what it cannot convert as it is, and the check refuses that.
    """
    return {"convert": convert}


class Effective(Generic[T]):
    """The value of a field, or the default that applies where the field is unset.

    A default that is a section is copied each time: it is shared by all configurations, and who
    assigns to it must not change theirs.
    """

    def __init__(self, field_name: str, default: T) -> None:
        self._field_name = field_name
        self._default = default

    def __get__(self, instance: object, owner: type | None = None) -> T:
        value: T | None = getattr(instance, self._field_name) if instance is not None else None
        if value is not None:
            return value
        return self._default.copy() if isinstance(self._default, ConfigSection) else self._default


class Persisted:
    """A part of the configuration that stands in the repository.

    Not a dataclass itself, because frozen ones and others cannot have one as their common base.

    Attributes
    ----------
    unknown
        What a newer writer put into this part and this version has no field for. It is kept so
        that saving the configuration again loses nobody's settings.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    if typing.TYPE_CHECKING:

        @property
        def unknown(self) -> Mapping[str, Any]:
            """What this version has no field for."""

    def __repr__(self) -> str:
        """Show what is set, and nothing that may be secret."""
        shown = (
            f"{item.name}={value!r}"
            for item in fields(self)
            if item.repr and (value := getattr(self, item.name)) != _default_of(item)
        )
        return f"{type(self).__qualname__}({', '.join(shown)})"


def _default_of(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


@dataclass(frozen=True, slots=True, repr=False)
class PersistedValue(Persisted):
    """A part that is one value: frozen, and so usable as a key."""

    unknown: Mapping[str, Any] = field(
        default_factory=dict, kw_only=True, repr=False, hash=False, metadata=NOT_A_FIELD_ON_DISK
    )

    def __post_init__(self) -> None:
        for name in field_types(type(self)):
            _check(type(self), name, getattr(self, name))


@dataclass(slots=True, repr=False)
class ConfigSection(Persisted):
    """A section whose fields are all optional, so that two can be laid over each other.

    Fields can be assigned to, under the checks of the constructor; a value that is refused leaves
    the section as it was. Two sections are equal if all they hold is.

    Raises
    ------
    InvalidInputError
        If a field cannot hold the value.
    AttributeError
        If there is no such field.
    """

    unknown: Mapping[str, Any] = field(
        default_factory=dict, kw_only=True, repr=False, hash=False, metadata=NOT_A_FIELD_ON_DISK
    )

    def __setattr__(self, name: str, value: object) -> None:
        section = type(self)
        item = self.__dataclass_fields__.get(name)
        if item is None:
            close = difflib.get_close_matches(name.removeprefix("effective_"), field_types(section))
            names = f"did you mean {' or '.join(close)}?" if close else f"it has {_listed(section)}"
            raise AttributeError(f"{section.__name__} has no field {name!r} to set: {names}")
        if "convert" in item.metadata:
            value = item.metadata["convert"](value)
        if value is not None and name in field_types(section):  # None is what all may be
            _check(section, name, value)
        object.__setattr__(self, name, value)

    @display.with_repr_fallback
    def _repr_html_(self) -> str:
        return display.config_html(self)

    def copy(self) -> Self:
        """Make a section that is equal, and shares nothing that can be changed."""
        return copy.deepcopy(self)

    def merge(self, other: Self) -> Self:
        """Lay ``other`` over this section: what is set there wins, leaf by leaf.

        Containers, preload and splitting are replaced as wholes. Neither section is changed, and
        the result shares nothing with them.
        """
        merged, over = self.copy(), other.copy()
        for item in fields(over):
            mine, theirs = getattr(merged, item.name), getattr(over, item.name)
            if item.name == "unknown":
                set_by_other = {k: v for k, v in theirs.items() if v is not None or k not in mine}
                merged.unknown = {**mine, **set_by_other}
            elif theirs is not None:
                by_leaf = isinstance(mine, ConfigSection) and "merge" not in item.metadata
                setattr(merged, item.name, mine.merge(theirs) if by_leaf else theirs)
        return merged


def _listed(section: type) -> str:
    return ", ".join(field_types(section))


def _check(section: type, name: str, value: object) -> None:
    problem = problem_with(field_types(section)[name], value)
    if problem is not None:
        raise InvalidInputError(
            f"{section.__name__}.{name}: {problem}", kind=ErrorKind.STORAGE_CONFIG
        )


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
