"""The vocabulary, and the lossless conversion between tokens and ids.

Words outside the vocabulary are encoded as characters. Characters outside the vocabulary are encoded as UTF-8 bytes, as
in SentencePiece's byte fallback (Kudo and Richardson, 2018).
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
from chatbot.corpus.tokenizer import SPACE
from chatbot.errors import UserError

PAD, BOS, EOS, UNK, ASK = range(5)
# <bos> begins an answer. <ask> begins a question, if the model generates a question from an answer.
SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<ask>")

# Special tokens that begin each turn in a source with history: one for turns of the user, and one for turns of the
# chatbot. They contain spaces, so no token of a text can equal a mark.
MARKS = ("<their turn>", "<own turn>")

# Tokens for single bytes. They have the last ids of the vocabulary.
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
# Minimum size of a vocabulary. It contains the special tokens, all bytes and SPACE.
MIN_SIZE = len(SPECIALS) + len(BYTES) + 1

# Minimum count of a word or character in the vocabulary, because a single occurrence is too few to learn an embedding.
MIN_COUNT = 2

# Maximum size of vocabulary.txt in bytes. A million tokens take about ten million bytes.
MAX_BYTES = 256_000_000


class Vocabulary:
    """A vocabulary, which assigns consecutive ids to tokens.

    The order of the tokens is: special tokens, characters and words, marks of speakers (with history only), and bytes.

    Attributes:
        tokens: Token of each id.
        texts: UTF-8 text of each id, empty for special tokens and marks.
        id_of: Id of each token that represents text.
        first_mark: Id of the first mark. If there are no marks, it equals `first_byte`.
        first_byte: Id of byte 0.
        beginning: Ids of tokens without text that the tokenizer adds to the beginning of each utterance.
    """

    beginning: tuple[int, ...] = ()

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = [*SPECIALS, *tokens]
        self.first_byte = len(self.tokens) - len(BYTES)
        assert tuple(self.tokens[self.first_byte :]) == BYTES, "the last tokens must be the bytes"
        marks_begin = self.first_byte - len(MARKS)
        self.has_marks = tuple(self.tokens[marks_begin : self.first_byte]) == MARKS
        self.first_mark = marks_begin if self.has_marks else self.first_byte
        self.id_of = {self.tokens[i]: i for i in range(len(SPECIALS), self.first_mark)}
        assert len(set(self.tokens)) == len(self.tokens), "the tokens must be distinct"
        words = (token.replace(SPACE, " ").encode() for token in self.tokens[len(SPECIALS) : self.first_mark])
        marks = [b""] * (self.first_byte - self.first_mark)
        self.texts = [*[b""] * len(SPECIALS), *words, *marks, *(bytes([byte]) for byte in range(len(BYTES)))]

    def __len__(self) -> int:
        return len(self.tokens)

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens. Unknown tokens are split into characters, and unknown characters into bytes.

        The tokens must not contain lone surrogates, because UTF-8 cannot encode them.
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
        """Return the ids of a reply's tokens, without the EOS that some tokenizers add."""
        ids = self.ids(tokens)
        return ids[:-1] if ids[-1:] == [EOS] else ids

    def text(self, ids: Iterable[int]) -> str:
        """Return the text of the ids before the first EOS. Bytes that are not valid UTF-8 become U+FFFD."""
        texts = (self.texts[i] for i in itertools.takewhile(lambda i: i != EOS, ids))
        return b"".join(texts).decode(errors="replace").replace(SPACE, " ").strip()

    def tokens_of(self, ids: Iterable[int], errors: str = "replace") -> list[str]:
        """Return the tokens of ids, including special tokens. Consecutive bytes are decoded into characters.

        Bytes that are not valid UTF-8 become U+FFFD, unless `errors` is another error handler of `bytes.decode`.
        """
        tokens: list[str] = []
        for are_bytes, run in itertools.groupby(ids, lambda i: i >= self.first_byte):
            if are_bytes:
                tokens.extend(bytes(i - self.first_byte for i in run).decode(errors=errors))
            else:
                tokens.extend(self.tokens[i] for i in run)
        return tokens

    def spellings(self) -> list[list[int]]:
        """Return the ids of the characters of each word. For every other token, return its own id.

        A SPACE at the beginning of a word counts as a character. Characters outside the vocabulary are omitted.
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
        """Return the content of vocabulary.txt: one token per line in the order of ids, without special tokens."""
        return "".join(f"{t}\n" for t in self.tokens[len(SPECIALS) :]).encode()


class PieceVocabulary(Vocabulary):
    """The special tokens of this package, followed by the tokens of a pretrained model, which can be parts of words.

    Args:
        pieces: Tokens of the pretrained model, except its special tokens.
        description: JSON description of the tokenizer, with these keys:
            - "special": pieces for PAD, EOS and UNK.
            - "silent": pieces without text.
            - "literal": pieces that equal their text.
            - "beginning": pieces at the start of each text.
            - "texts": decoder of all other pieces (see `chatbot.corpus.pieces`).
            - "config": values of the model's config.json.
    """

    def __init__(self, pieces: Iterable[str], description: Mapping[str, Any]) -> None:
        self.description = dict(description)
        self.tokens = [*SPECIALS, *pieces]
        self.first_byte = self.first_mark = len(self.tokens)
        self.has_marks = False
        special = dict(zip(description["special"], (PAD, EOS, UNK), strict=True))
        self.id_of = {piece: i for i, piece in enumerate(self.tokens[len(SPECIALS) :], len(SPECIALS))} | special
        self.beginning = tuple(self.id_of[piece] for piece in description["beginning"])
        fixed = dict.fromkeys(description["silent"], b"") | {x: x.encode() for x in description["literal"]}
        text_of_piece = TEXTS[description["texts"]]
        texts = [fixed[x] if x in fixed else text_of_piece(x) for x in self.tokens[len(SPECIALS) :]]
        self.texts = [b""] * len(SPECIALS) + texts

    def ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of pieces. Unknown pieces have the id UNK."""
        return [self.id_of.get(token, UNK) for token in tokens]

    def tokens_of(self, ids: Iterable[int], errors: str = "replace") -> list[str]:
        """Return the text of each piece, or the name of a special token."""
        return [self.texts[i].decode(errors=errors).replace(" ", SPACE) or self.tokens[i] for i in ids]

    def spellings(self) -> list[list[int]]:
        """Return the id of each piece as a list of length 1, because pieces are not split into characters."""
        return [[i] for i in range(len(self))]

    def content(self) -> bytes:
        """Return the content of vocabulary.txt: the pieces, followed by the description as a line of JSON."""
        return super().content() + json.dumps(self.description, ensure_ascii=False).encode() + b"\n"

    def fingerprint(self) -> str:
        """Return a hash of the pieces, their order and the description."""
        return hashlib.sha256(self.content()).hexdigest()


def build_vocabulary(tokens: Mapping[str, int], size: int, marks: bool = False) -> Vocabulary:
    """Build a vocabulary of all bytes, and of the most frequent characters and words.

    Characters and words must occur at least MIN_COUNT times. If the vocabulary is too small for all of them, characters
    take precedence over words. Characters inside words are counted.

    Args:
        tokens: Counts of tokens.
        size: Maximum number of entries, at least MIN_SIZE plus the number of marks.
        marks: Whether to add MARKS.
    """
    size -= MIN_SIZE + (len(MARKS) if marks else 0)
    points, lengths = code_points(tokens)
    by_point = np.bincount(points, np.repeat([*tokens.values()], lengths)).astype(np.int64)
    characters = {chr(point): int(by_point[point]) for point in np.flatnonzero(by_point).tolist()}
    counts = {SPACE: characters.pop(SPACE, 0), **_select_frequent(characters, size)}
    words = {token: count for token, count in tokens.items() if len(token) > 1 and token not in (*SPECIALS, *BYTES)}
    counts |= _select_frequent(words, size + 1 - len(counts))
    return Vocabulary([*_sort_by_count(counts), *(MARKS if marks else ()), *BYTES])


def code_points(texts: Collection[str]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
    """Return the code points of all texts, [characters], and the length of each text, [texts]."""
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    return np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32), lengths


def _select_frequent(counts: Mapping[str, int], number: int) -> dict[str, int]:
    """Return the most frequent texts that occur at least MIN_COUNT times. Ties are broken by text order."""
    frequent = {text: count for text, count in counts.items() if count >= MIN_COUNT}
    return {text: frequent[text] for text in _sort_by_count(frequent)[:number]}


def _sort_by_count(counts: Mapping[str, int]) -> list[str]:
    """Sort texts by decreasing count, then by text order."""
    return sorted(sorted(counts), key=counts.__getitem__, reverse=True)


def load_vocabulary(path: Path) -> Vocabulary:
    """Load a vocabulary from vocabulary.txt. Raises UserError if the file is missing or damaged."""
    remedy = "restore it from a backup, or train again under another --attempt"
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode("utf-8")
    except OSError as error:
        raise UserError(f"{path}: vocabulary cannot be read ({error.strerror}); {remedy}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: vocabulary damaged (not UTF-8); {remedy}") from None
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: vocabulary damaged (more than {MAX_BYTES:,} bytes); {remedy}")
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
    """Return the input of the encoder: the ids of a question and its previous turns, with marks of speakers.

    Args:
        turns: Ids of each turn, from the oldest turn to the question. If the vocabulary has no marks, only the question
            is used.
        vocabulary: Vocabulary of the model.
        max_length: Maximum number of tokens in the source. The oldest turns are dropped, but never the question.
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
    """Return the question in a source, without the previous turns and marks of speakers."""
    marks = range(vocabulary.first_mark, vocabulary.first_byte)
    return list(source[max((position + 1 for position, i in enumerate(source) if i in marks), default=0) :])
