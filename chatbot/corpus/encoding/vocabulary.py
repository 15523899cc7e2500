"""Which tokens have an id, and the way from words to ids and back.

A word outside the vocabulary is written with its characters; only a character never seen is UNK.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from chatbot.corpus.text.tokenizer import SPACE, text_of
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
        return [i for spelled in self.spelled(words) for i in spelled]

    def spelled(self, tokens: Iterable[str]) -> list[tuple[int, ...]]:
        """The ids of each token by itself; faster than `ids` of one token after the other."""
        known = self._ids
        return [(known[t],) if t in known else tuple(known.get(character, UNK) for character in t) for t in tokens]

    def text(self, ids: Iterable[int]) -> str:
        """The text up to the first EOS; the special ones are left out."""
        tokens = []
        for i in ids:
            if i == EOS:
                break
            if i >= len(SPECIALS):
                tokens.append(self.tokens[i])
        return text_of(tokens)

    def written(self, ids: Iterable[int]) -> list[str]:
        """The token of each id, the special ones by their names."""
        return [self.tokens[i] for i in ids]

    def fingerprint(self) -> str:
        """A hash of the tokens and their order."""
        return hashlib.sha256("\n".join(self.tokens).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """One token a line, in the order of ids, the special ones left out. The file is whole or not there."""
        part = path.with_name(path.name + ".part")
        part.write_text("".join(f"{t}\n" for t in self.tokens[len(SPECIALS) :]), encoding="utf-8")
        part.replace(path)


def room_for_words(size: int, characters: Mapping[str, int]) -> int:
    """How many words a vocabulary of this size has beside the special tokens and these characters."""
    return max(0, size - len(SPECIALS) - len({SPACE, *characters}))


def build_vocabulary(characters: Mapping[str, int], words: Mapping[str, int], size: int) -> Vocabulary:
    """Every character, then the most frequent words seen at least LEAST_COUNT times, up to size entries in all.

    All characters are kept even if they alone are more than size. Order is by count, then by text.
    """
    longer = {word: count for word, count in words.items() if len(word) > 1 and count >= LEAST_COUNT}
    ranked = sorted(longer, key=lambda word: (-longer[word], word))[: room_for_words(size, characters)]
    counted = {SPACE: 0, **characters, **{word: longer[word] for word in ranked}}
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
