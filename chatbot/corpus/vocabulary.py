"""The vocabulary: its construction, and the conversion from tokens to ids and back, without loss.

A token outside the vocabulary becomes the ids of its characters, and a character outside the vocabulary the ids of its
UTF-8 bytes, as with SentencePiece's byte fallback (Kudo and Richardson, 2018).
"""

import hashlib
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.corpus.pieces import TEXTS
from chatbot.corpus.tokenizer import SPACE, text_of
from chatbot.errors import UserError

PAD, BOS, EOS, UNK, ASK = range(5)
# <bos> begins an answer; <ask> begins a question that is generated from an answer.
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<ask>")

# With history, each turn of a source begins with one of these: it is a turn of the other speaker, such as the question,
# or of the speaker who replies. No token of a text equals a mark, since tokens have no spaces.
MARKS = ("<their turn>", "<own turn>")

# The tokens of single bytes. They are the last ones, since the ids of all others are in the order of their frequency.
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
# The special tokens, the bytes, and SPACE.
LEAST_SIZE = len(SPECIALS) + len(BYTES) + 1

# Rarer words are spelled in characters and rarer characters in bytes, since their embeddings could not be learned.
MIN_COUNT = 2

# Of a vocabulary.txt; one of a million tokens has about ten million.
MOST_BYTES = 256_000_000


class Vocabulary:
    """Tokens with the ids 0 to size - 1: the special ones, characters and words, with history the marks, the 256 bytes.

    tokens: without the special ones.

    beginning: the ids of tokens without a text with which each utterance begins.
    """

    beginning: tuple[int, ...] = ()

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = [*SPECIALS, *tokens]
        self.first_byte = len(self.tokens) - len(BYTES)  # the id of byte 0
        assert tuple(self.tokens[self.first_byte :]) == BYTES, "the last tokens are not the bytes"
        marks_begin = self.first_byte - len(MARKS)
        self.has_marks = tuple(self.tokens[marks_begin : self.first_byte]) == MARKS
        self.first_mark = marks_begin if self.has_marks else self.first_byte  # the id after the last word
        self.id_of = {self.tokens[i]: i for i in range(len(SPECIALS), self.first_mark)}
        assert len(set(self.tokens)) == len(self.tokens), "a token occurs twice"

    def __len__(self) -> int:
        return len(self.tokens)

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens. An unknown token has the ids of its characters, an unknown character of its bytes.

        tokens: without lone surrogates, which have no UTF-8 bytes.
        """
        known = self.id_of
        ids: list[int] = []
        for token in tokens:
            if token in known:
                ids.append(known[token])
                continue
            for character in token:
                if character in known:
                    ids.append(known[character])
                else:
                    ids.extend(self.first_byte + byte for byte in character.encode())
        return ids

    def reply_ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of a reply's tokens, without an EOS at the end that the tokenizer has added."""
        ids = self.ids(tokens)
        return ids[:-1] if ids[-1:] == [EOS] else ids

    def text(self, ids: Iterable[int]) -> str:
        """Return the text up to the first EOS, without special tokens."""
        ids = itertools.takewhile(lambda i: i != EOS, ids)
        marks = range(self.first_mark, self.first_byte)
        return text_of(self.tokens_of(i for i in ids if i >= len(SPECIALS) and i not in marks))

    def tokens_of(self, ids: Iterable[int], errors: str = "replace") -> list[str]:
        """Return the token of each id, special tokens included; bytes become the characters that they spell.

        errors: of `bytes.decode`, for bytes that spell no character; they become U+FFFD.
        """
        tokens: list[str] = []
        for are_bytes, run in itertools.groupby(ids, lambda i: i >= self.first_byte):
            if are_bytes:
                tokens.extend(bytes(i - self.first_byte for i in run).decode(errors=errors))
            else:
                tokens.extend(self.tokens[i] for i in run)
        return tokens

    def bytes_of_tokens(self) -> list[bytes]:
        """Return the text of each id in UTF-8; special tokens and marks have none, and bytes are themselves."""
        texts = [b""] * len(SPECIALS)
        texts += [token.replace(SPACE, " ").encode() for token in self.tokens[len(SPECIALS) : self.first_mark]]
        texts += [b""] * (self.first_byte - self.first_mark)
        return texts + [bytes([byte]) for byte in range(len(self) - self.first_byte)]

    def spellings(self) -> list[list[int]]:
        """Return for each id the ids of its characters: for a word those that the vocabulary has, else the id itself.

        The mark of a space before a word is one of its characters.
        """
        rows = [[i] for i in range(len(self.tokens))]
        for i in range(len(SPECIALS), self.first_mark):
            if len(self.tokens[i]) > 1:
                rows[i] = [self.id_of[c] for c in self.tokens[i] if c in self.id_of] or [i]
        return rows

    def fingerprint(self) -> str:
        """Return a hash of the tokens and their order."""
        return hashlib.sha256("\n".join(self.tokens).encode()).hexdigest()

    def content(self) -> bytes:
        """Return the content of vocabulary.txt: one token a line, in the order of ids, without the special ones."""
        return "".join(f"{t}\n" for t in self.tokens[len(SPECIALS) :]).encode()


class PieceVocabulary(Vocabulary):
    """The tokens of a pretrained model: pieces of words, or of characters, with our special tokens first.

    pieces: those that are none of our special tokens. description: what the tokenizer says of them, as JSON has it:
    "special", the pieces of PAD, EOS and UNK; "silent", those that have no text; "literal", those that are their text;
    "beginning", those before each text; "texts", the code of the others (`chatbot.corpus.pieces`); "config", what the
    config.json of the model says.
    """

    def __init__(self, pieces: Iterable[str], description: Mapping[str, Any]) -> None:
        self.description = dict(description)
        self.tokens = [*SPECIALS, *pieces]
        self.first_byte = self.first_mark = len(self.tokens)
        self.has_marks = False
        special = dict(zip(description["special"], (PAD, EOS, UNK), strict=True))
        self.id_of = {piece: i for i, piece in enumerate(self.tokens[len(SPECIALS) :], len(SPECIALS))} | special
        self.beginning = tuple(self.id_of[piece] for piece in description["beginning"])
        given = dict.fromkeys(description["silent"], b"") | {x: x.encode() for x in description["literal"]}
        text_of_piece = TEXTS[description["texts"]]
        texts = [given[x] if x in given else text_of_piece(x) for x in self.tokens[len(SPECIALS) :]]
        self._texts = [b""] * len(SPECIALS) + texts

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of pieces, UNK for others."""
        return [self.id_of.get(token, UNK) for token in tokens]

    def text(self, ids: Iterable[int]) -> str:
        """Return the text up to the first EOS. Bytes that spell no character become U+FFFD."""
        found = (self._texts[i] for i in itertools.takewhile(lambda i: i != EOS, ids))
        return b"".join(found).decode(errors="replace").strip()

    def tokens_of(self, ids: Iterable[int], errors: str = "replace") -> list[str]:
        """Return the text of each piece; of special tokens their names."""
        return [self._texts[i].decode(errors=errors).replace(" ", SPACE) or self.tokens[i] for i in ids]

    def bytes_of_tokens(self) -> list[bytes]:
        """Return the text of each id in UTF-8; special tokens have none."""
        return self._texts

    def spellings(self) -> list[list[int]]:
        """Return each id by itself: no piece is spelled in others."""
        return [[i] for i in range(len(self))]

    def content(self) -> bytes:
        """Return the content of vocabulary.txt: the description follows the pieces, as a line of JSON."""
        return super().content() + json.dumps(self.description, ensure_ascii=False).encode() + b"\n"

    def fingerprint(self) -> str:
        """Return a hash of the pieces, their order and the description."""
        return hashlib.sha256(self.content()).hexdigest()


def build_vocabulary(tokens: Mapping[str, int], size: int, marks: bool = False) -> Vocabulary:
    """Build a vocabulary of bytes and of the most frequent characters, and then words, that occur MIN_COUNT times.

    tokens: their counts. size: the maximum number of entries, at least LEAST_SIZE, and the marks. Characters, which
    are counted within words too, and words are ordered by count, then by text. marks: whether to add MARKS.
    """
    size -= LEAST_SIZE + (len(MARKS) if marks else 0)
    points, lengths = code_points(tokens)
    by_point = np.bincount(points, np.repeat([*tokens.values()], lengths)).astype(np.int64)
    characters = {chr(point): int(by_point[point]) for point in np.flatnonzero(by_point).tolist()}
    counts = {SPACE: characters.pop(SPACE, 0), **_most_frequent(characters, size)}
    words = {token: count for token, count in tokens.items() if len(token) > 1 and token not in (*SPECIALS, *BYTES)}
    counts |= _most_frequent(words, size + 1 - len(counts))
    return Vocabulary([*_by_count(counts), *(MARKS if marks else ()), *BYTES])


def code_points(texts: Collection[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the code points of the characters of all texts, [characters], and the length of each text, [texts]."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32), lengths


def _most_frequent(counts: Mapping[str, int], number: int) -> dict[str, int]:
    """Return the most frequent texts that occur MIN_COUNT times with their counts; of equal counts, the first texts."""
    frequent = {text: count for text, count in counts.items() if count >= MIN_COUNT}
    return {text: frequent[text] for text in _by_count(frequent)[:number]}


def _by_count(counts: Mapping[str, int]) -> list[str]:
    """Return the texts, the most frequent first; texts of equal counts in their order."""
    return sorted(sorted(counts), key=counts.__getitem__, reverse=True)


def load_vocabulary(path: Path) -> Vocabulary:
    """Read `Vocabulary.content` from a file. Raises UserError for a missing or damaged file."""
    remedy = "restore it from a backup, or train again under another --attempt"
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: vocabulary cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: vocabulary damaged (not UTF-8); {remedy}") from None
    if len(content) > MOST_BYTES:
        raise UserError(f"{path}: vocabulary damaged (more than {MOST_BYTES:,} bytes); {remedy}")
    *tokens, last = text.split("\n")
    if tokens and tokens[-1].startswith("{") and not last:
        try:
            return PieceVocabulary(tokens[:-1], json.loads(tokens[-1]))
        except (ValueError, LookupError, TypeError):
            raise UserError(f"{path}: vocabulary damaged; {remedy}") from None
    all_differ = len({*tokens, *SPECIALS, ""}) == len(tokens) + len(SPECIALS) + 1
    if last or not all_differ or tuple(tokens[-len(BYTES) :]) != BYTES:
        raise UserError(f"{path}: vocabulary damaged; {remedy}")
    return Vocabulary(tokens)


def source_of(turns: Sequence[Sequence[int]], vocabulary: Vocabulary, max_length: int) -> list[int]:
    """Return the source of a question and the turns before it.

    turns: the ids of each turn, the oldest first and the question last. A vocabulary without marks takes the question
    alone. A question of more than max_length tokens is kept as it is.
    """
    if not vocabulary.has_marks:
        return list(turns[-1])
    source: list[int] = []
    for age, turn in enumerate(reversed(turns)):
        marked = [vocabulary.first_mark + age % len(MARKS), *turn]
        if source and len(source) + len(marked) > max_length:
            break
        source = marked + source
    return source


def question_of(source: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """Return the question of a source, without its mark and the turns before it."""
    marks = range(vocabulary.first_mark, vocabulary.first_byte)
    return list(source[max((position + 1 for position, i in enumerate(source) if i in marks), default=0) :])
