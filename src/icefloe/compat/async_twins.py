"""Icechunk's ``*_async`` methods, which run the synchronous method in a thread."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C", bound=type)


def add_async_twins(*names: str) -> Callable[[C], C]:
    """Add a coroutine ``name_async`` to a class for each of its methods ``name``."""

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, f"{name}_async", _make_twin(cls, name))
        return cls

    return decorate


def _make_twin(cls: type, name: str) -> Any:
    attribute = cls.__dict__[name]
    method = attribute.__func__ if isinstance(attribute, classmethod | staticmethod) else attribute

    @functools.wraps(method)
    async def twin(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(method, *args, **kwargs)

    twin.__name__ = f"{name}_async"
    twin.__qualname__ = f"{cls.__qualname__}.{name}_async"
    twin.__doc__ = f"Like `{name}`, without blocking the event loop."
    return type(attribute)(twin) if isinstance(attribute, classmethod | staticmethod) else twin
