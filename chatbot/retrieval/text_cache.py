"""A cache of values that are computed from texts. It saves time because users often ask the same questions."""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")


class TextCache(Generic[Value]):
    """A thread-safe cache of the values of recently requested texts.

    Args:
        compute: A function that computes the values of a list of distinct texts.
        max_size: The maximum number of cached values. The values of a single call can exceed it.
    """

    def __init__(self, compute: Callable[[list[str]], Iterable[Value]], max_size: int) -> None:
        self._compute = compute
        self._max_size = max_size
        self._cache: dict[str, Value] = {}

    def __call__(self, texts: Sequence[str]) -> list[Value]:
        """Return the value of each text. All missing values are computed in one call."""
        cache = self._cache  # Another thread may replace self._cache during this call.
        missing = [text for text in dict.fromkeys(texts) if text not in cache]
        new = dict(zip(missing, self._compute(missing), strict=True)) if missing else {}
        values = [new[text] if text in new else cache[text] for text in texts]
        if len(cache) + len(new) > self._max_size:
            self._cache = new
        else:
            cache.update(new)
        return values
