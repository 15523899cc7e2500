"""Held-out pairs that the model's replies are measured on."""

from typing import NamedTuple


class Sample(NamedTuple):
    """A pair. Characters unknown to a vocabulary without bytes may be <unk> in the texts."""

    ids: list[int]  # of the question
    question: str
    answer: str
