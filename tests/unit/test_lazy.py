"""A property that is computed once, while other objects compute theirs."""

import threading
from concurrent.futures import ThreadPoolExecutor

from kfp_tfjob.common.lazy import LazyProperty

both = threading.Barrier(2, timeout=60)


class Square:
    def __init__(self, number: int) -> None:
        self.number, self.calls = number, 0

    @LazyProperty
    def value(self) -> int:
        """The square."""
        self.calls += 1
        return self.number**2

    @LazyProperty
    def together(self) -> int:
        both.wait()  # for the other object's
        return self.number


def test_a_value_is_computed_once_or_set() -> None:
    square = Square(3)
    assert (square.value, square.value, square.calls) == (9, 9, 1)
    other = Square(3)
    other.value = 5
    assert (other.value, other.calls, Square.value.__doc__) == (5, 0, "The square.")


def test_objects_do_not_wait_for_each_other() -> None:
    """functools.cached_property of Python 3.11 would wait here indefinitely."""
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda number: Square(number).together, (1, 2))) == [1, 2]
