"""Texts that end a reply."""

import functools
from collections.abc import Iterable, Sequence


def before_stop(text: str, stops: Iterable[str]) -> str:
    """Return the text before the stop text that is complete first, without spaces at its end.

    The result for a longer text that begins with this one is the same, if there is a stop text in this one.
    """
    places = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)[1]].rstrip() if places else text


class StopMatcher:
    """Finds the stop text that is complete first in a text that arrives in parts (Knuth, Morris and Pratt, 1977).

    The work for a part depends on its length, on the number of stop texts and on their length, and not on the length of
    what came before it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)  # characters at the end of the text that begin each stop text
        self.read = 0  # characters of the text
        self.start: int | None = None  # of the stop text that was found

    @property
    def held(self) -> int:
        """The number of characters at the end of the text that may be the beginning of a stop text."""
        return max(self._matched, default=0)

    def add(self, part: str) -> bool:
        """Read the next part of the text, up to a stop text. Return whether there is one."""
        if not self._stops:
            self.read += len(part)
        for character in part if self._stops else "":
            self.read += 1
            found = 0
            for number, (stop, borders) in enumerate(self._stops):
                matched = self._matched[number]
                while matched and stop[matched] != character:
                    matched = borders[matched - 1]
                matched += stop[matched] == character
                if matched == len(stop):
                    found, matched = max(found, matched), borders[-1]
                self._matched[number] = matched
            if found:
                self.start = self.read - found
                return True
        return False


@functools.lru_cache(maxsize=256)  # the replies to a question have the same stop texts
def _borders(text: str) -> tuple[int, ...]:
    """Return for each beginning of a text how many of its last characters are a shorter beginning of the text."""
    borders = [0]
    for character in text[1:]:
        length = borders[-1]
        while length and text[length] != character:
            length = borders[length - 1]
        borders.append(length + (text[length] == character))
    return tuple(borders)
