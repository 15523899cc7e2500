"""The text of a reply in pieces, while its tokens are generated. It needs no TensorFlow."""

from collections.abc import Iterator, Sequence

from chatbot.corpus.encoding.vocabulary import Vocabulary
from chatbot.inference.stop_texts import before_stop, certain


def pieces(prefixes: Iterator[list[int]], vocabulary: Vocabulary, stops: Sequence[str]) -> Iterator[str]:
    """Yield the text of a reply in pieces, as soon as later ids cannot change them.

    Held back are the bytes of an incomplete character, spaces at the end, and what may begin a stop text.

    prefixes: the ids of the reply after each token.
    """
    text = given = ""
    for ids in prefixes:
        text = vocabulary.text(_complete(ids, vocabulary))
        if before_stop(text, stops) != text:
            break
        ready = certain(text, stops)
        if len(ready) > len(given):
            yield ready[len(given) :]
            given = ready
    rest = before_stop(text, stops)[len(given) :]
    if rest:
        yield rest


def _complete(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """Return the ids without the bytes of an incomplete character at the end."""
    tail = len(ids)
    while tail and ids[tail - 1] >= vocabulary.first_byte:
        tail -= 1
    try:
        bytes(i - vocabulary.first_byte for i in ids[tail:]).decode()
    except UnicodeDecodeError as error:
        return ids[: tail + error.start]
    return ids
