"""Downsampling: each output item aggregates a window of items. Pure.

Windows at the far edges may be clipped. Missing items (NaN, NaT, CF ``_FillValue``) are ignored; a
window without any valid item is missing.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.pipeline.argument_errors import invalid_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

METHODS: Final = ("mean", "sum", "min", "max", "mode", "nearest")


def coarse_shape(shape: Sequence[int], factors: Sequence[int]) -> tuple[int, ...]:
    """Return the downsampled shape."""
    return tuple(-(-size // factor) for size, factor in zip(shape, factors, strict=True))


def coarse_dtype(dtype: np.dtype[Any], method: str) -> np.dtype[Any]:
    """Return the data type of the result.

    Raises `InvalidInputError` if the method does not apply to the data type.
    """
    if method not in METHODS:
        raise invalid_array(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if dtype.kind not in "biufmM" and method not in {"nearest", "mode"}:
        raise invalid_array(f"{dtype} has no {method}: use 'nearest' or 'mode'")
    if method != "sum" or dtype.kind == "f":
        return dtype
    if dtype.kind == "M":
        raise invalid_array("datetimes have no sum")
    return np.dtype("u8") if dtype.kind == "u" else np.dtype("i8") if dtype.kind in "bi" else dtype


def coarsen(
    values: NDArray[Any], factors: Sequence[int], method: str, *, missing: Any = None
) -> NDArray[Any]:
    """Aggregate the items of each window; windows are whole, except at the far edges.

    ``mean`` is rounded for integers, ``mode`` is the smallest of equally frequent items, and
    ``nearest`` the first item. ``missing`` is the missing value, besides NaN and NaT.
    """
    dtype = coarse_dtype(values.dtype, method)
    if method == "nearest":
        return values[tuple(slice(None, None, factor) for factor in factors)]
    if values.dtype.kind in "mM":
        numbers = coarsen(values.view("i8"), factors, method, missing=np.iinfo("i8").min)
        return numbers.view(values.dtype)
    windows, is_valid = _windows(values, factors, missing)
    if method == "mode":
        return _mode(windows, is_valid, missing)
    count = is_valid.sum(axis=-1)
    if method in {"min", "max"}:
        least, most = _limits(values.dtype)
        fill = most if method == "min" else least
        filled = np.where(is_valid, windows, np.asarray(fill, values.dtype))
        found = filled.min(axis=-1) if method == "min" else filled.max(axis=-1)
    else:
        exact = values.dtype.kind in "biu"
        wide = dtype if method == "sum" else np.dtype("f8")
        if exact and method == "mean" and values.dtype.itemsize == 8:
            return _exact_mean(windows, is_valid, count, missing)
        filled = np.where(is_valid, windows, np.asarray(0, values.dtype))
        found = filled.sum(axis=-1, dtype=wide if exact or method == "mean" else np.dtype("f8"))
        if method == "mean":
            with np.errstate(invalid="ignore", divide="ignore"):
                found = found / count
            if exact:
                found = np.rint(np.where(count > 0, found, 0))
    return _with_missing(found.astype(dtype), count == 0, missing)


def _windows(
    values: NDArray[Any], factors: Sequence[int], missing: Any
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the items of each window along a new last axis, and a mask of valid ones."""
    is_valid = np.ones(values.shape, bool)
    if values.dtype.kind in "fc":
        is_valid &= ~np.isnan(values)
    if missing is not None:
        is_valid &= values != missing
    shape = coarse_shape(values.shape, factors)
    short = [
        (0, size * factor - length)
        for size, factor, length in zip(shape, factors, values.shape, strict=True)
    ]
    if any(after for _, after in short):
        values = np.pad(values, short, mode="edge")
        is_valid = np.pad(is_valid, short, constant_values=False)
    split = [part for size, factor in zip(shape, factors, strict=True) for part in (size, factor)]
    axes = [*range(0, len(split), 2), *range(1, len(split), 2)]

    def split_windows(array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(split).transpose(axes).reshape(*shape, prod(factors))

    return split_windows(values), split_windows(is_valid)


def _mode(windows: NDArray[Any], is_valid: NDArray[np.bool_], missing: Any) -> NDArray[Any]:
    order = np.argsort(windows, axis=-1, kind="stable")
    windows = np.take_along_axis(windows, order, axis=-1)
    is_valid = np.take_along_axis(is_valid, order, axis=-1)
    frequency = np.stack(
        [
            np.where(
                is_valid[..., item],
                ((windows == windows[..., item : item + 1]) & is_valid).sum(axis=-1),
                0,
            )
            for item in range(windows.shape[-1])
        ],
        axis=-1,
    )
    best = frequency.argmax(axis=-1)[..., None]
    found = np.take_along_axis(windows, best, axis=-1)[..., 0]
    return _with_missing(found, frequency.max(axis=-1) == 0, missing)


def _exact_mean(
    windows: NDArray[Any], is_valid: NDArray[np.bool_], count: NDArray[Any], missing: Any
) -> NDArray[Any]:
    """Return the rounded mean of 64-bit integers, which float64 cannot represent."""
    filled = np.where(is_valid, windows, 0)
    some = np.maximum(count, 1).astype(windows.dtype)
    parts = filled // some[..., None]
    rests = (filled - parts * some[..., None]).sum(axis=-1)
    found, rests = parts.sum(axis=-1) + rests // some, rests % some
    # Round half to even, as NumPy does.
    found += (2 * rests > some) | ((2 * rests == some) & (found % 2 == 1))
    return _with_missing(found.astype(windows.dtype), count == 0, missing)


def _with_missing(found: NDArray[Any], is_missing: NDArray[np.bool_], missing: Any) -> NDArray[Any]:
    if not is_missing.any():
        return found
    fill = missing if missing is not None else np.nan if found.dtype.kind in "fc" else None
    if fill is None:
        return found
    return np.where(is_missing, np.asarray(fill, found.dtype), found)


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return False, True
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max
