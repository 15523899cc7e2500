"""Which tokens have an id, and the way from words to ids and back.

A word outside the vocabulary is written with its characters; only a character never seen is UNK.
"""

import hashlib
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from chatbot.corpus.tokenizer import SPACE, text_of
from chatbot.errors import UserError

PAD, BOS, EOS, UNK, ASK = range(5)
# <ask> begins a question that is to be found for an answer, as <bos> begins an answer.
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<ask>")

# A word seen less often is spelled in characters: its embedding could not be learned.
LEAST_COUNT = 2


class Vocabulary:
    """Tokens with ids 0..size-1, the special ones first."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = [*SPECIALS, *tokens]
        self._ids = {token: i for i, token in enumerate(self.tokens)}
        assert len(self._ids) == len(self.tokens), "a token stands twice"

    def __len__(self) -> int:
        return len(self.tokens)

    def ids(self, words: Sequence[str]) -> list[int]:
        """The ids of words, of their characters where a word is unknown, and UNK for unknown characters."""
        ids: list[int] = []
        for word in words:
            known = self._ids.get(word)
            if known is None:
                ids.extend(self._ids.get(character, UNK) for character in word)
            else:
                ids.append(known)
        return ids

    def text(self, ids: Iterable[int]) -> str:
        """The text up to the first EOS; the special ones are left out."""
        tokens = []
        for i in ids:
            if i == EOS:
                break
            if i >= len(SPECIALS):
                tokens.append(self.tokens[i])
        return text_of(tokens)

    def fingerprint(self) -> str:
        """A hash of the tokens and their order."""
        return hashlib.sha256("\n".join(self.tokens).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """One token a line, in the order of ids, the special ones left out. The file is whole or not there."""
        part = path.with_name(path.name + ".part")
        part.write_text("".join(f"{t}\n" for t in self.tokens[len(SPECIALS) :]), encoding="utf-8")
        part.replace(path)


def build_vocabulary(counters: Iterable[Mapping[str, int]], size: int) -> Vocabulary:
    """Every character of the counted tokens, then the most frequent words, up to size entries in all.

    counters: each token is counted in one of them. All characters are kept even if they alone are more
    than size. Order is by count, then by text.
    """
    characters: Counter[str] = Counter({SPACE: 0})
    words: list[tuple[int, str]] = []  # (-count, word) of the most frequent so far
    for counter in counters:
        for token, count in counter.items():
            for character in token:
                characters[character] += count
        longer = ((-c, w) for w, c in counter.items() if len(w) > 1 and c >= LEAST_COUNT)
        words = heapq.nsmallest(size, itertools.chain(words, longer))
    room = max(0, size - len(SPECIALS) - len(characters))
    counted = {**characters, **{word: -count for count, word in words[:room]}}
    return Vocabulary(sorted(counted, key=lambda token: (-counted[token], token)))


def load_vocabulary(path: Path) -> Vocabulary:
    """Read what `Vocabulary.save` wrote. Raises UserError for a missing or damaged file."""
    remedy = "restore it from a backup, or train again under another --attempt"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: vocabulary cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: vocabulary damaged (not UTF-8); {remedy}") from None
    tokens = text.split("\n")
    if tokens.pop() != "" or not tokens or len(set(tokens) | set(SPECIALS) | {""}) != len(tokens) + len(SPECIALS) + 1:
        raise UserError(f"{path}: vocabulary damaged (line {len(tokens)}); {remedy}")
    return Vocabulary(tokens)
