"""Cuts text into tokens, without loss: joining the tokens gives the text back.

A tokenizer is a function from a cleaned text to its tokens.
"""

import functools
import logging
import marshal
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import jieba

from chatbot.corpus.text.segmentation import segmentation
from chatbot.errors import UserError

# Stands before a word that follows a space, as in SentencePiece (Kudo and Richardson, 2018).
SPACE = "\u2581"

Tokenizer = Callable[[str], list[str]]


@functools.cache
def tokenizer(name: str = "jieba", dictionary: str | None = None) -> Tokenizer:
    """The tokenizer of this name, "jieba" or "char"; dictionary is a file of words that jieba is to know.

    Raises UserError when the dictionary cannot be used.
    """
    cut = _jieba(dictionary) if name == "jieba" else list

    def tokens(text: str) -> list[str]:
        return _with_spaces(cut(text)) if " " in text else cut(text)

    return tokens


def _with_spaces(cut: Iterable[str]) -> list[str]:
    """A space becomes SPACE in front of the word after it."""
    tokens: list[str] = []
    space = ""
    for word in cut:
        if word == " ":
            space = SPACE
        else:
            tokens.append(space + word)
            space = ""
    return tokens


def text_of(tokens: list[str]) -> str:
    """The text that the tokens were cut from; words and single characters may be mixed."""
    return "".join(tokens).replace(SPACE, " ").strip()


def _dictionary() -> jieba.Tokenizer:
    """jieba's own, from the cache it keeps. jieba reads that item by item, which takes three times as long."""
    cutter = jieba.Tokenizer()
    try:
        cutter.FREQ, cutter.total = marshal.loads(Path(tempfile.gettempdir(), "jieba.cache").read_bytes())
        cutter.initialized = True
    except (OSError, EOFError, ValueError, TypeError):
        cutter.initialize()  # there is none yet, or it is damaged: jieba makes one
    return cutter


def _jieba(dictionary: str | None) -> Tokenizer:
    jieba.setLogLevel(logging.WARNING)
    cutter = _dictionary()
    if dictionary is not None:
        try:
            with open(dictionary, "rb") as file:
                cutter.load_userdict(file)
        except OSError as error:
            raise UserError(f"{dictionary}: dictionary cannot be read ({error.strerror})") from None
        except (ValueError, OverflowError) as error:
            raise UserError(f"{dictionary}: not a jieba dictionary in UTF-8: {error}") from None
    return segmentation(cutter)
