"""Texts that end a reply."""

from collections.abc import Iterable


def before_stop(text: str, stops: Iterable[str]) -> str:
    """Return the text before the stop text that is complete first, without spaces at its end.

    The result for a longer text that begins with this one is the same, if there is a stop text in this one.
    """
    places = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)[1]].rstrip() if places else text


def certain(text: str, stops: Iterable[str]) -> str:
    """Return the beginning of a text without stop texts that is not changed by what may follow it.

    The end of a text is held back if it may be the beginning of a stop text. Spaces at the end are held back, since a
    reply ends without.
    """
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held].rstrip()
