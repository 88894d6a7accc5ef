"""Imports functions by ``module:name``, so that executors can unpickle them."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from icefloe.pipeline.argument_errors import argument_error

if TYPE_CHECKING:
    from collections.abc import Callable


def load_function(name: str) -> Callable[..., Any]:
    """Import a function from the current directory or the installed packages.

    A module of the current directory is pickled by value, because executors do not have that
    directory; the packages it imports must be installed on the executors. Raises
    `InvalidInputError` if the module or function does not exist.
    """
    module_name, separator, function_name = name.partition(":")
    if not module_name or not separator or not function_name:
        raise argument_error(f"expected module:name, such as mymodule:anomaly, got {name!r}")
    directory = os.getcwd()  # noqa: PTH109 - sys.path has strings
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise argument_error(
            f"{name!r}: {error}; modules are looked up in the current directory and among "
            "installed packages"
        ) from error
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        raise argument_error(
            f"{name!r}: the module {module_name} has no function {function_name!r}"
        )
    if find_spec("pyspark") is not None and (module.__file__ or "").startswith(directory):
        from pyspark import cloudpickle  # noqa: PLC0415 - an extra

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return function
