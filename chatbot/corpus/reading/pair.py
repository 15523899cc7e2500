"""Pairs of text, and how each follows the previous pair of its file.

A pair is (question, answer, link), a plain tuple, since a named one takes ten times as long to create. The link is one
of:

    NEW      the pair begins a conversation, as every row of a table does
    OVERLAP  its question is the answer of the previous pair, as in a list of utterances
    NEXT     its question comes after the answer of the previous pair, as in messages of a user and an assistant
    RESUMED  it belongs to the conversation of the previous pair, but the turns between them were dropped

The turns before a question follow from the previous pairs, up to the first NEW or RESUMED one: OVERLAP adds the
question of the previous pair, NEXT its question and its answer. Readers yield no RESUMED link; cleaning does.
"""

Pair = tuple[str, str, int]

NEW, OVERLAP, NEXT, RESUMED = range(4)


def linked(pair: Pair, link: int) -> Pair:
    """Return the pair with another link."""
    return pair[0], pair[1], link
