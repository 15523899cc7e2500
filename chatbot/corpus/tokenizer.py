"""Cuts text into words, without loss: joining the words gives the text back."""

import functools
import logging

import jieba

# Stands before a word that follows a space, as in SentencePiece (Kudo and Richardson, 2018).
SPACE = "\u2581"


@functools.cache
def _jieba() -> jieba.Tokenizer:
    jieba.setLogLevel(logging.WARNING)
    tokenizer = jieba.Tokenizer()
    tokenizer.initialize()
    return tokenizer


def words(text: str) -> list[str]:
    """The jieba words of a cleaned text; a space is kept as SPACE in front of the word after it."""
    cut: list[str] = []
    space = ""
    for word in _jieba().lcut(text):
        if word == " ":
            space = SPACE
        else:
            cut.append(space + word)
            space = ""
    return cut


def text_of(tokens: list[str]) -> str:
    """The text that the tokens were cut from; words and single characters may be mixed."""
    return "".join(tokens).replace(SPACE, " ").strip()
