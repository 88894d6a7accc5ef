"""Functions given as ``module:name``, and their transport to executors."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from icefloe.pipeline.argument_errors import invalid_argument

if TYPE_CHECKING:
    from collections.abc import Callable


def load_function(name: str) -> Callable[..., Any]:
    """Import a function by name, from the current directory or the installed packages.

    A module of the current directory is pickled by value, because executors do not have that
    directory; its imports must be installed there. Raises `InvalidInputError` if there is no such
    module or function.
    """
    module_name, separator, function_name = name.partition(":")
    if not module_name or not separator or not function_name:
        raise invalid_argument(f"{name!r} is not of the form module:name, such as mymodule:anomaly")
    here = os.getcwd()  # noqa: PTH109 - as sys.path has it
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise invalid_argument(
            f"{name!r}: {error}; modules are searched in the current directory and the installed "
            "packages"
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise invalid_argument(
            f"{name!r}: the module {module_name} has no function {function_name!r}"
        )
    if find_spec("pyspark") is not None and (module.__file__ or "").startswith(here):
        from pyspark import cloudpickle  # noqa: PLC0415 - an extra

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    found: Callable[..., Any] = function
    return found
