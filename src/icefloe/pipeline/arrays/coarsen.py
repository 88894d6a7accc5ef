"""Downsampling: each output item aggregates a window of items. Pure functions, no I/O.

Windows at the far edges may be clipped. All methods except ``nearest`` ignore missing items (NaN,
NaT, CF ``_FillValue``); a window without any valid item is missing.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from icefloe.pipeline.argument_errors import array_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

METHODS: Final = ("mean", "sum", "min", "max", "mode", "nearest")


def coarsen_shape(shape: Sequence[int], factors: Sequence[int]) -> tuple[int, ...]:
    """Return the downsampled shape."""
    return tuple(-(-size // factor) for size, factor in zip(shape, factors, strict=True))


def coarsen_dtype(dtype: np.dtype[Any], method: str) -> np.dtype[Any]:
    """Return the data type of the result.

    Raises `InvalidInputError` if the method does not apply to the data type.
    """
    if method not in METHODS:
        raise array_error(f"method must be one of {', '.join(METHODS)}, not {method!r}")
    if dtype.kind not in "biufmM" and method not in {"nearest", "mode"}:
        raise array_error(f"{dtype} has no {method}: use 'nearest' or 'mode'")
    if method != "sum" or dtype.kind == "f":
        return dtype
    if dtype.kind == "M":
        raise array_error("datetimes have no sum")
    return np.dtype("u8") if dtype.kind == "u" else np.dtype("i8") if dtype.kind in "bi" else dtype


def coarsen(
    values: NDArray[Any], factors: Sequence[int], method: str, *, missing: Any = None
) -> NDArray[Any]:
    """Aggregate the items of each window; windows may be clipped at the far edges.

    ``mean`` is rounded for integers, ``mode`` is the smallest of equally frequent items, and
    ``nearest`` the first item. ``missing`` is one more missing value besides NaN; for datetimes
    and timedeltas only NaT is missing.
    """
    dtype = coarsen_dtype(values.dtype, method)
    if method == "nearest":
        return values[tuple(slice(None, None, factor) for factor in factors)]
    if values.dtype.kind in "mM":
        numbers = coarsen(values.view("i8"), factors, method, missing=np.iinfo("i8").min)
        return numbers.view(values.dtype)
    windows, is_valid = _split_windows(values, factors, missing)
    if method == "mode":
        return _compute_mode(windows, is_valid, missing)
    count = is_valid.sum(axis=-1)
    if method in {"min", "max"}:
        lowest, highest = _get_limits(values.dtype)
        fill = highest if method == "min" else lowest
        filled = np.where(is_valid, windows, np.asarray(fill, values.dtype))
        result = filled.min(axis=-1) if method == "min" else filled.max(axis=-1)
    else:
        is_integer = values.dtype.kind in "biu"
        sum_dtype = dtype if is_integer and method == "sum" else np.dtype("f8")
        if is_integer and method == "mean" and values.dtype.itemsize == 8:
            return _compute_exact_mean(windows, is_valid, count, missing)
        filled = np.where(is_valid, windows, np.asarray(0, values.dtype))
        result = filled.sum(axis=-1, dtype=sum_dtype)
        if method == "mean":
            with np.errstate(invalid="ignore", divide="ignore"):
                result = result / count
            if is_integer:
                result = np.rint(np.where(count > 0, result, 0))
    return _fill_missing(result.astype(dtype), count == 0, missing)


def _split_windows(
    values: NDArray[Any], factors: Sequence[int], missing: Any
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the items of each window along a new last axis, and a mask of valid ones."""
    is_valid = np.ones(values.shape, bool)
    if values.dtype.kind in "fc":
        is_valid &= ~np.isnan(values)
    if missing is not None:
        is_valid &= values != missing
    shape = coarsen_shape(values.shape, factors)
    padding = [
        (0, num_windows * factor - size)
        for num_windows, factor, size in zip(shape, factors, values.shape, strict=True)
    ]
    if any(after for _, after in padding):
        values = np.pad(values, padding, mode="edge")
        is_valid = np.pad(is_valid, padding, constant_values=False)
    split_shape = [
        part
        for num_windows, factor in zip(shape, factors, strict=True)
        for part in (num_windows, factor)
    ]
    axes = [*range(0, len(split_shape), 2), *range(1, len(split_shape), 2)]

    def reshape_windows(array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(split_shape).transpose(axes).reshape(*shape, prod(factors))

    return reshape_windows(values), reshape_windows(is_valid)


def _compute_mode(windows: NDArray[Any], is_valid: NDArray[np.bool_], missing: Any) -> NDArray[Any]:
    order = np.argsort(windows, axis=-1, kind="stable")
    windows = np.take_along_axis(windows, order, axis=-1)
    is_valid = np.take_along_axis(is_valid, order, axis=-1)
    frequency = np.stack(
        [
            np.where(
                is_valid[..., position],
                ((windows == windows[..., position : position + 1]) & is_valid).sum(axis=-1),
                0,
            )
            for position in range(windows.shape[-1])
        ],
        axis=-1,
    )
    best = frequency.argmax(axis=-1)[..., None]
    modes = np.take_along_axis(windows, best, axis=-1)[..., 0]
    return _fill_missing(modes, frequency.max(axis=-1) == 0, missing)


def _compute_exact_mean(
    windows: NDArray[Any], is_valid: NDArray[np.bool_], count: NDArray[Any], missing: Any
) -> NDArray[Any]:
    """Return the rounded mean of 64-bit integers, which float64 does not represent exactly."""
    filled = np.where(is_valid, windows, 0)
    divisors = np.maximum(count, 1).astype(windows.dtype)
    quotients = filled // divisors[..., None]
    remainders = (filled - quotients * divisors[..., None]).sum(axis=-1)
    means, remainders = quotients.sum(axis=-1) + remainders // divisors, remainders % divisors
    # Round half to even, as NumPy does.
    means += (2 * remainders > divisors) | ((2 * remainders == divisors) & (means % 2 == 1))
    return _fill_missing(means.astype(windows.dtype), count == 0, missing)


def _fill_missing(items: NDArray[Any], is_missing: NDArray[np.bool_], missing: Any) -> NDArray[Any]:
    if not is_missing.any():
        return items
    fill = missing if missing is not None else np.nan if items.dtype.kind in "fc" else None
    if fill is None:
        return items
    return np.where(is_missing, np.asarray(fill, items.dtype), items)


def _get_limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "b":
        return False, True
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max
