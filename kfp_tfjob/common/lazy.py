"""Properties that are computed once for each object, without a lock.

`functools.cached_property` of Python 3.11 has one lock for all objects of a class, so threads that
work on objects of their own would wait for each other. An object that several threads share may be
asked twice; both get an equal value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class LazyProperty(Generic[Value]):
    """A property whose value is stored in the object's `__dict__` at its first use."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Remember the property's name."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> LazyProperty[Value]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...
    def __get__(self, instance: object | None, owner: type) -> Value | LazyProperty[Value]:
        """Return the value; the object's own entry hides this from then on."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value

    if TYPE_CHECKING:
        # As an attribute, it can be set; a method of this name would hide the object's entry.
        def __set__(self, instance: object, value: Value) -> None: ...
