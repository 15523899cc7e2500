"""Lossless tokenisation: joining the tokens gives the text back.

A tokenizer is a function from a cleaned text to its tokens.
"""

import functools
from collections.abc import Callable, Iterable

from chatbot.corpus.reading.files.word_list import read_word_list

# Precedes a word that follows a space, as in SentencePiece (Kudo and Richardson, 2018).
SPACE = "\u2581"

Tokenizer = Callable[[str], list[str]]


def tokenizer(name: str = "jieba", dictionary: str | None = None) -> Tokenizer:
    """Return the tokenizer. name: "jieba" or "char". dictionary: the path of a user dictionary for jieba.

    It is made once for each content of the dictionary. Raises UserError when the dictionary cannot be used.
    """
    return _made(name, dictionary, None if dictionary is None else read_word_list(dictionary, "dictionary"))


@functools.lru_cache(maxsize=8)
def _made(name: str, dictionary: str | None, content: object) -> Tokenizer:
    segment: Callable[[str], list[str]] = list
    if name == "jieba":
        from chatbot.corpus.text.jieba_segmenter import jieba_segmenter  # a tenth of a second

        segment = jieba_segmenter(dictionary)

    def tokens(text: str) -> list[str]:
        return _with_spaces(segment(text)) if " " in text else segment(text)

    return tokens


def _with_spaces(words: Iterable[str]) -> list[str]:
    """Replace each space by SPACE at the beginning of the next word."""
    tokens: list[str] = []
    space = ""
    for word in words:
        if word == " ":
            space = SPACE
        else:
            tokens.append(space + word)
            space = ""
    return tokens


def text_of(tokens: list[str]) -> str:
    """Return the text of these tokens, which may be words, single characters or both."""
    return "".join(tokens).replace(SPACE, " ").strip()
