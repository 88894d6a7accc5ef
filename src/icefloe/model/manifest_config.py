"""Configuration of manifests: splitting, preloading, and compression of locations.

`icefloe.transaction` evaluates the conditions. Their regular expressions come from the repository
and are untrusted.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from icefloe.model.config_section import (
    I32,
    REPLACE_ON_MERGE,
    U16,
    U32,
    U64,
    ConfigSection,
    Effective,
    PersistedValue,
    convert_with,
)


@dataclass(frozen=True, slots=True)
class Unbounded(PersistedValue):
    """No bound."""


@dataclass(frozen=True, slots=True)
class Included(PersistedValue):
    """An inclusive bound."""

    value: U32


@dataclass(frozen=True, slots=True)
class Excluded(PersistedValue):
    """An exclusive bound."""

    value: U32


Bound: TypeAlias = Unbounded | Included | Excluded


@dataclass(frozen=True, slots=True)
class ManifestPreloadCondition(PersistedValue):
    """A condition that selects arrays whose manifests are loaded when a session starts."""

    @staticmethod
    def or_conditions(conditions: "Iterable[ManifestPreloadCondition]") -> "PreloadOr":
        """Return a condition that holds if any of the conditions holds."""
        return PreloadOr(tuple(conditions))

    @staticmethod
    def and_conditions(conditions: "Iterable[ManifestPreloadCondition]") -> "PreloadAnd":
        """Return a condition that holds if all conditions hold."""
        return PreloadAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> "PreloadPathMatches":
        """Return a condition on the path of the array."""
        return PreloadPathMatches(regex)

    @staticmethod
    def name_matches(regex: str) -> "PreloadNameMatches":
        """Return a condition on the last segment of the path."""
        return PreloadNameMatches(regex)

    @staticmethod
    def num_refs(from_refs: int | None = None, to_refs: int | None = None) -> "PreloadNumRefs":
        """Return a condition on the number of references, in ``[from_refs, to_refs)``."""
        return PreloadNumRefs(
            Unbounded() if from_refs is None else Included(from_refs),
            Unbounded() if to_refs is None else Excluded(to_refs),
        )

    @staticmethod
    def true() -> "PreloadTrue":
        """Return a condition that holds for every array."""
        return PreloadTrue()

    @staticmethod
    def false() -> "PreloadFalse":
        """Return a condition that holds for no array."""
        return PreloadFalse()

    def __and__(self, other: "ManifestPreloadCondition") -> "PreloadAnd":
        # Flat, so that a long chain stays within the depth limit of readers.
        head = self.conditions if isinstance(self, PreloadAnd) else (self,)
        return PreloadAnd((*head, other))

    def __or__(self, other: "ManifestPreloadCondition") -> "PreloadOr":
        # Flat, so that a long chain stays within the depth limit of readers.
        head = self.conditions if isinstance(self, PreloadOr) else (self,)
        return PreloadOr((*head, other))


@dataclass(frozen=True, slots=True)
class PreloadOr(ManifestPreloadCondition):
    """Any of the conditions holds."""

    conditions: tuple[ManifestPreloadCondition, ...]


@dataclass(frozen=True, slots=True)
class PreloadAnd(ManifestPreloadCondition):
    """All conditions hold."""

    conditions: tuple[ManifestPreloadCondition, ...]


@dataclass(frozen=True, slots=True)
class PreloadPathMatches(ManifestPreloadCondition):
    """The path of the array matches a regular expression."""

    regex: str


@dataclass(frozen=True, slots=True)
class PreloadNameMatches(ManifestPreloadCondition):
    """The last segment of the array's path matches a regular expression."""

    regex: str


@dataclass(frozen=True, slots=True)
class PreloadNumRefs(ManifestPreloadCondition):
    """The number of chunk references is between the bounds."""

    from_bound: Bound
    to_bound: Bound


@dataclass(frozen=True, slots=True)
class PreloadTrue(ManifestPreloadCondition):
    """Every array."""


@dataclass(frozen=True, slots=True)
class PreloadFalse(ManifestPreloadCondition):
    """No array."""


COORDINATE_NAMES: Final = ManifestPreloadCondition.or_conditions(
    ManifestPreloadCondition.name_matches(regex)
    for regex in (
        r"^\bt\b$|^(time|min|hour|day|week|month|year)[0-9]*$",
        (
            r"^(z|nav_lev|gdep|lv_|[o]*lev|bottom_top|sigma|h(ei)?ght|altitude|depth|isobaric"
            r"|pres|isotherm)[a-z_]*[0-9]*$"
        ),
        r"^(y|j|nlat|rlat|nj)$",
        r"^y?(nav_lat|lat|gphi)[a-z0-9]*$",
        r"^x?(nav_lon|lon|glam)[a-z0-9]*$",
        r"^(x|i|nlon|rlon|ni)$",
    )
)
"""Selects arrays with common names of coordinates; the expressions are from cf-xarray."""

DEFAULT_PRELOAD_CONDITION: Final[ManifestPreloadCondition] = COORDINATE_NAMES & PreloadNumRefs(
    Unbounded(), Included(1000)
)


@dataclass(slots=True, repr=False)
class ManifestPreloadConfig(ConfigSection):
    """Condition and limits of preloading."""

    max_total_refs: U32 | None = None
    preload_if: ManifestPreloadCondition | None = None
    max_arrays_to_scan: U32 | None = None

    effective_max_total_refs = Effective(10_000)
    effective_preload_if = Effective(DEFAULT_PRELOAD_CONDITION)
    effective_max_arrays_to_scan = Effective(50)


@dataclass(frozen=True, slots=True)
class ManifestSplitCondition(PersistedValue):
    """A condition that selects the arrays of a splitting rule."""

    @staticmethod
    def or_conditions(conditions: "Iterable[ManifestSplitCondition]") -> "SplitOr":
        """Return a condition that holds if any of the conditions holds."""
        return SplitOr(tuple(conditions))

    @staticmethod
    def and_conditions(conditions: "Iterable[ManifestSplitCondition]") -> "SplitAnd":
        """Return a condition that holds if all conditions hold."""
        return SplitAnd(tuple(conditions))

    @staticmethod
    def path_matches(regex: str) -> "SplitPathMatches":
        """Return a condition on the path of the array."""
        return SplitPathMatches(regex)

    @staticmethod
    def name_matches(regex: str) -> "SplitNameMatches":
        """Return a condition on the last segment of the path."""
        return SplitNameMatches(regex)

    @staticmethod
    def AnyArray() -> "SplitAnyArray":  # noqa: N802 - Icechunk's name
        """Return a condition that holds for every array."""
        return SplitAnyArray()

    def __and__(self, other: "ManifestSplitCondition") -> "SplitAnd":
        # Flat, so that a long chain stays within the depth limit of readers.
        head = self.conditions if isinstance(self, SplitAnd) else (self,)
        return SplitAnd((*head, other))

    def __or__(self, other: "ManifestSplitCondition") -> "SplitOr":
        # Flat, so that a long chain stays within the depth limit of readers.
        head = self.conditions if isinstance(self, SplitOr) else (self,)
        return SplitOr((*head, other))


@dataclass(frozen=True, slots=True)
class SplitOr(ManifestSplitCondition):
    """Any of the conditions holds."""

    conditions: tuple[ManifestSplitCondition, ...]


@dataclass(frozen=True, slots=True)
class SplitAnd(ManifestSplitCondition):
    """All conditions hold."""

    conditions: tuple[ManifestSplitCondition, ...]


@dataclass(frozen=True, slots=True)
class SplitPathMatches(ManifestSplitCondition):
    """The path of the array matches a regular expression."""

    regex: str


@dataclass(frozen=True, slots=True)
class SplitNameMatches(ManifestSplitCondition):
    """The last segment of the array's path matches a regular expression."""

    regex: str


@dataclass(frozen=True, slots=True)
class SplitAnyArray(ManifestSplitCondition):
    """Every array."""


class ManifestSplitDimCondition:
    """Namespace of the conditions on dimensions; `AnySplitDimCondition` is their union."""

    @dataclass(frozen=True, slots=True)
    class Axis(PersistedValue):
        """The dimension at this index."""

        axis: U64

    @dataclass(frozen=True, slots=True)
    class DimensionName(PersistedValue):
        """The dimensions whose name matches a regular expression."""

        regex: str

    @dataclass(frozen=True, slots=True)
    class Any(PersistedValue):
        """Every dimension; list it last, because the first matching condition applies."""


AnySplitDimCondition: TypeAlias = (
    ManifestSplitDimCondition.Axis
    | ManifestSplitDimCondition.DimensionName
    | ManifestSplitDimCondition.Any
)


@dataclass(frozen=True, slots=True)
class ManifestSplitDim(PersistedValue):
    """The number of chunks that a manifest spans along matching dimensions."""

    condition: AnySplitDimCondition
    num_chunks: U32

    def __iter__(self) -> Iterator[AnySplitDimCondition | int]:
        """Unpack like a pair, as in Icechunk."""
        yield self.condition
        yield self.num_chunks


AnySplitDim: TypeAlias = ManifestSplitDim | tuple[AnySplitDimCondition, int]
"""A `ManifestSplitDim`, or the equivalent pair, as in Icechunk."""

ManifestSplitValues: TypeAlias = dict[AnySplitDimCondition, int]
SplitSizesDict: TypeAlias = dict[ManifestSplitCondition, ManifestSplitValues]

SplitSizes: TypeAlias = tuple[tuple[ManifestSplitCondition, tuple[ManifestSplitDim, ...]], ...]

WHOLE_ARRAYS: Final[SplitSizes] = (
    (SplitPathMatches(".*"), (ManifestSplitDim(ManifestSplitDimCondition.Any(), 2**32 - 1),)),
)
"""Does not split: one manifest per array."""


def _convert_sizes(rules: Any) -> Any:
    """Convert lists to tuples, and pairs to `ManifestSplitDim`."""
    if not isinstance(rules, list | tuple):
        return rules
    return tuple(_convert_rule(rule) for rule in rules)


def _convert_rule(rule: Any) -> Any:
    match rule:
        case [condition, [*dims]]:
            return condition, tuple(_convert_dim(dim) for dim in dims)
    return rule


def _convert_dim(dim: Any) -> Any:
    match dim:
        case [condition, num_chunks]:
            return ManifestSplitDim(condition, num_chunks)
    return dim


@dataclass(slots=True, repr=False, init=False)
class ManifestSplittingConfig(ConfigSection):
    """Rules that split the manifests of arrays; a dimension uses the first rule that matches it."""

    split_sizes: SplitSizes | None = field(default=None, metadata=convert_with(_convert_sizes))

    def __init__(
        self,
        split_sizes: Iterable[tuple[ManifestSplitCondition, Iterable[AnySplitDim]]] | None = None,
        *,
        unknown: Mapping[str, Any] | None = None,
    ) -> None:
        # Assignment converts to the annotated type.
        self.split_sizes = split_sizes  # type: ignore[assignment]
        self.unknown = {} if unknown is None else unknown

    effective_split_sizes = Effective(WHOLE_ARRAYS)

    @staticmethod
    def from_dict(
        # Any, because the key type of Mapping is invariant.
        split_sizes: Mapping[Any, Mapping[Any, int]],
    ) -> "ManifestSplittingConfig":
        """Make the configuration from an ordered mapping of rules."""
        return ManifestSplittingConfig(
            tuple(
                (condition, tuple(ManifestSplitDim(dim, size) for dim, size in sizes.items()))
                for condition, sizes in split_sizes.items()
            )
        )

    def to_dict(self) -> SplitSizesDict:
        """Return the rules as a mapping, with the first of equal conditions."""
        rules: SplitSizesDict = {}
        for condition, dims in self.split_sizes or ():
            sizes: ManifestSplitValues = {}
            for dim in dims:
                sizes.setdefault(dim.condition, dim.num_chunks)
            rules.setdefault(condition, sizes)
        return rules


@dataclass(slots=True, repr=False)
class ManifestVirtualChunkLocationCompressionConfig(ConfigSection):
    """Compression of virtual chunk locations with a zstd dictionary."""

    min_num_chunks: U16 | None = None
    dictionary_max_training_samples: U16 | None = field(default=None, kw_only=True)
    dictionary_max_size_bytes: U32 | None = field(default=None, kw_only=True)
    compression_level: I32 | None = field(default=None, kw_only=True)

    effective_min_num_chunks = Effective(1000)
    effective_dictionary_max_training_samples = Effective(100)
    effective_dictionary_max_size_bytes = Effective(2048)
    effective_compression_level = Effective(3)


@dataclass(slots=True, repr=False)
class ManifestConfig(ConfigSection):
    """Configuration of manifests."""

    preload: ManifestPreloadConfig | None = field(default=None, metadata=REPLACE_ON_MERGE)
    splitting: ManifestSplittingConfig | None = field(default=None, metadata=REPLACE_ON_MERGE)
    virtual_chunk_location_compression: ManifestVirtualChunkLocationCompressionConfig | None = None
    max_concurrent_manifest_fetches_during_commit: U16 | None = None

    effective_preload = Effective(ManifestPreloadConfig())
    effective_splitting = Effective(ManifestSplittingConfig())
    effective_virtual_chunk_location_compression = Effective(
        ManifestVirtualChunkLocationCompressionConfig()
    )

    @property
    def effective_max_concurrent_manifest_fetches_during_commit(self) -> int:
        """The maximum number of manifests that a commit fetches concurrently, at least 1."""
        return max(1, self.max_concurrent_manifest_fetches_during_commit or 1)
