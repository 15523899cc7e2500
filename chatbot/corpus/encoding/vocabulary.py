"""The vocabulary: its construction, and the conversion from tokens to ids and back.

A token outside the vocabulary becomes the ids of its characters; only a character never seen becomes UNK.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from chatbot.corpus.text.tokenizer import SPACE, text_of
from chatbot.errors import UserError

PAD, BOS, EOS, UNK, ASK = range(5)
# <bos> begins an answer; <ask> begins a question that is generated from an answer.
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<ask>")

# Rarer tokens are spelled in characters, since their embeddings could not be learned.
MIN_COUNT = 2


class Vocabulary:
    """Tokens with the ids 0 to size - 1, the special ones first."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = [*SPECIALS, *tokens]
        self._ids = {token: i for i, token in enumerate(self.tokens)}
        assert len(self._ids) == len(self.tokens), "a token occurs twice"

    def __len__(self) -> int:
        return len(self.tokens)

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens. An unknown token has the ids of its characters, an unknown character has UNK."""
        known = self._ids
        ids: list[int] = []
        for token in tokens:
            if token in known:
                ids.append(known[token])
            else:
                ids.extend(known.get(character, UNK) for character in token)
        return ids

    def text(self, ids: Iterable[int]) -> str:
        """Return the text up to the first EOS, without special tokens."""
        tokens = []
        for i in ids:
            if i == EOS:
                break
            if i >= len(SPECIALS):
                tokens.append(self.tokens[i])
        return text_of(tokens)

    def tokens_of(self, ids: Iterable[int]) -> list[str]:
        """Return the token of each id, special tokens included."""
        return [self.tokens[i] for i in ids]

    def fingerprint(self) -> str:
        """Return a hash of the tokens and their order."""
        return hashlib.sha256("\n".join(self.tokens).encode()).hexdigest()

    def content(self) -> bytes:
        """Return the content of vocabulary.txt: one token a line, in the order of ids, without the special ones."""
        return "".join(f"{t}\n" for t in self.tokens[len(SPECIALS) :]).encode()

    def save(self, path: Path) -> None:
        """Write `content` to a file. The file is complete or absent."""
        part = path.with_name(path.name + ".part")
        part.write_bytes(self.content())
        part.replace(path)


def longer_token_capacity(size: int, characters: Mapping[str, int]) -> int:
    """Return the number of longer tokens that fit, beside the special tokens and these characters, into this size."""
    return max(0, size - len(SPECIALS) - len({SPACE, *characters}))


def build_vocabulary(characters: Mapping[str, int], tokens: Mapping[str, int], size: int) -> Vocabulary:
    """Build a vocabulary of every character and the most frequent tokens with at least MIN_COUNT occurrences.

    size: the number of entries, specials included; larger if there are more characters. Ids are ordered by count, then
    by text.
    """
    longer = {token: count for token, count in tokens.items() if len(token) > 1 and count >= MIN_COUNT}
    capacity = longer_token_capacity(size, characters)
    most_frequent = sorted(longer, key=lambda token: (-longer[token], token))[:capacity]
    counts = {SPACE: 0, **characters, **{token: longer[token] for token in most_frequent}}
    return Vocabulary(sorted(counts, key=lambda token: (-counts[token], token)))


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
