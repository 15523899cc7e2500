"""Finds training pairs with similar questions, in an index on disk."""

import functools
import sys
from collections.abc import Sequence, Set
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import EOS, Vocabulary
from chatbot.durable import read_json
from chatbot.errors import UserError
from chatbot.retrieval.characters import CharacterIndex, Doubles, similarities
from chatbot.retrieval.embeddings import UnavailableError, Vectors
from chatbot.retrieval.text_cache import TextCache
from chatbot.retrieval.vectors import Meaning, dots

# The names of the arrays in the `CharacterIndex`.
ARRAYS = ("grams", "starts", "texts", "weights")
# The file names of the other arrays: the ids of questions, the ids of replies, the lengths of both [pairs, 2], and the
# unigram log-probability of each token in replies [vocabulary].
PAIRS = QUESTIONS, REPLIES, LENGTHS, TOKENS = "questions", "replies", "lengths", "tokens"
DESCRIPTION = "index.json"
# Optional parts of the folder: the embeddings of the pairs, and the fitted weights of the judge.
MEANING = "meaning"
JUDGE = "judge.json"
# The keys of the fitted minimum scores in JUDGE: of a search with embeddings if there are any, and without them.
MIN_SCORES = "least", "least_by_characters"
# Increase this number when the format of the files changes.
VERSION = 2
# Replies with one of these strings mention a person or a web page, so they do not fit other conversations.
ELSEWHERE = ("@", "http://", "https://", "www.")
# The number of pairs to retrieve per requested reply. It exceeds 1 because several pairs can have the same reply.
PAIRS_PER_REPLY = 2
# The maximum number of pairs in the cache, which take about 1 kB each.
MAX_CACHED_PAIRS = 10_000


class Pair(NamedTuple):
    """A question and its reply, either a training pair or a reply that a user rated.

    Attributes:
        question: The text of the question.
        reply: The text of the reply.
        ids: The token ids of the reply, without BOS and EOS.
        rating: "good" or "bad", or an empty string for a training pair.
        number: The index of a training pair, or None for a rated pair.
    """

    question: str
    reply: str
    ids: list[int]
    rating: str = ""
    number: int | None = None


class Retrieved(NamedTuple):
    """A pair retrieved for the user's question, and its similarities to this question.

    Without embeddings, `meaning`, `shared_meaning` and `fit` are 0.

    Attributes:
        pair: The pair.
        similarity: The character similarity of the pair's question, from 0 (no common character) to 1 (equal).
        meaning: The semantic similarity of the pair's question.
        shared: The character similarity of the pair's reply.
        shared_meaning: The semantic similarity of the pair's reply.
        fit: The semantic similarity of the question that a learned linear map predicts from the reply.
    """

    pair: Pair
    similarity: float
    meaning: float
    shared: float
    shared_meaning: float
    fit: float


class Retrieval:
    """A thread-safe, memory-mapped index that retrieves the replies to the most similar training questions.

    Args:
        folder: A folder written by `write_retrieval`.
        vocabulary: The vocabulary of the attempt.
        reads_meaning: Whether to load the embeddings of the pairs, if there are any.

    Attributes:
        is_validated: Whether the model of the attempt was validated.
        meaning: The embeddings of the pairs, or None.
        weights: The fitted weights of the judge, or None.
        min_score: The fitted minimum score of a reply, or None.
        key: Values that identify the indexed pairs.

    Raises:
        UserError: The folder is damaged, or belongs to a different vocabulary.
    """

    is_rated = False  # whether ratings affect the results

    def __init__(self, folder: Path, vocabulary: Vocabulary, reads_meaning: bool = True) -> None:
        remedy = "delete the folder, and train this attempt again, which writes it"
        try:
            description = read_json(folder / DESCRIPTION)
            # np.asarray converts memmap objects to plain arrays, which are several times faster to slice.
            arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in (*ARRAYS, *PAIRS)}
            index = CharacterIndex(len(arrays[LENGTHS]), description["mean_length"], **{n: arrays[n] for n in ARRAYS})
            lengths = arrays[LENGTHS].astype(np.int64)
            sizes_agree = [len(arrays[name]) for name in (QUESTIONS, REPLIES)] == lengths.sum(axis=0).tolist()
            is_of_vocabulary = description["vocabulary"] == vocabulary.fingerprint()
            sizes_agree &= len(arrays[TOKENS]) == len(vocabulary) or not is_of_vocabulary
            sizes_agree &= len(arrays["grams"]) + 1 == len(arrays["starts"])
            sizes_agree &= len(arrays["texts"]) == len(arrays["weights"]) == int(arrays["starts"][-1])
            is_whole = sizes_agree and description["version"] == VERSION
            judge = read_json(folder / JUDGE) if (folder / JUDGE).exists() else {}
            weights = {name: float(x) for name, x in judge["weights"].items()} if judge else None
            min_scores = [None if (score := judge.get(name)) is None else float(score) for name in MIN_SCORES]
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError):
            is_whole = False
        if not is_whole:
            raise UserError(f"{folder}: damaged, or of a different version; {remedy}")
        if not is_of_vocabulary:
            raise UserError(f"{folder}: belongs to another attempt with a different vocabulary; {remedy}")
        self.is_validated = bool(description.get("validated", True))
        self.key = {name: description.get(name) for name in ("corpus", "vocabulary", "most")}
        self.meaning = None
        if reads_meaning and (folder / MEANING).exists():
            try:
                self.meaning = Meaning(folder / MEANING, len(lengths), self.key)
            except UnavailableError as error:
                print(f"Warning: {error}. Until then, pairs are searched by characters only.", file=sys.stderr)
                weights = None
        self.weights = weights
        self.min_score = min_scores[self.meaning is None]
        self._index, self._vocabulary, self._token_log_probs = index, vocabulary, arrays[TOKENS].tolist()
        self._questions, self._replies = (
            Ragged.from_lengths(arrays[name], lengths[:, side]) for side, name in enumerate((QUESTIONS, REPLIES))
        )
        self._pair = functools.lru_cache(MAX_CACHED_PAIRS)(self._read_pair)
        self._weigh = TextCache(index.weigh, 2 * MAX_CACHED_PAIRS)

    def __len__(self) -> int:
        return len(self._questions)

    def texts(self) -> tuple["PairTexts", "PairTexts"]:
        """Return the questions and the replies of all pairs."""
        return PairTexts(self._questions, self._vocabulary), PairTexts(self._replies, self._vocabulary)

    def nearest(self, questions: Sequence[str], number: int, excluded: Set[int] = frozenset()) -> list[list[Retrieved]]:
        """Find the pairs whose questions are most similar to each question. Each reply occurs once, best first.

        A reply is excluded if the most similar pair with this reply was rated bad.

        Args:
            questions: The questions.
            number: The maximum number of replies per question. With embeddings, there can be twice as many.
            excluded: The indices of the pairs to ignore.
        """
        if self.meaning is None:
            vectors = [None] * len(questions)
            limit = number
        else:
            vectors = [*self.meaning.vectors(questions)]
            limit = 2 * number
        results = []
        for question, vector in zip(questions, vectors, strict=True):
            pairs = self._similar_pairs(question, vector, PAIRS_PER_REPLY * number + len(excluded))
            pairs = [pair for pair in pairs if pair.number not in excluded]
            by_reply: dict[str, Retrieved] = {}
            values = self._pair_similarities(question, vector, pairs)
            for i in np.argsort(-values[:, :2].sum(axis=1), kind="stable").tolist():
                by_reply.setdefault(pairs[i].reply, Retrieved(pairs[i], *values[i].tolist()))
            results.append([result for result in by_reply.values() if result.pair.rating != "bad"][:limit])
        return results

    def likeness(self, questions: Sequence[str], replies: Sequence[str]) -> Doubles:
        """Return `shared`, `shared_meaning` and `fit` (see `Retrieved`) of each reply to its question, [replies, 3]."""
        values = np.zeros([len(replies), 3])
        for row, (question, reply) in enumerate(zip(self._weigh(questions), self._weigh(replies), strict=True)):
            values[row, 0] = similarities(question, [reply])[0]
        if self.meaning is not None:
            values[:, 1:] = self.meaning.likeness(self.meaning.vectors(questions), self.meaning.vectors(replies))
        return values

    def _similar_pairs(self, question: str, vector: Vectors | None, number: int) -> list[Pair]:
        """Return up to `number` pairs with the most similar questions by characters, and as many by embeddings."""
        numbers = self._index.nearest(question, number)[0].tolist()
        if self.meaning is not None and vector is not None:
            numbers += self.meaning.nearest(vector, number)
        return [self._pair(i) for i in dict.fromkeys(numbers)]

    def _pair_similarities(self, question: str, vector: Vectors | None, pairs: Sequence[Pair]) -> Doubles:
        """Return the similarities of pairs to a question, [pairs, 5], in the order of the fields of `Retrieved`."""
        values = np.zeros([len(pairs), 5])
        if not pairs:
            return values
        texts = [pair.question for pair in pairs], [pair.reply for pair in pairs]
        weighted_question, *weighted_texts = self._weigh([question, *texts[0], *texts[1]])
        values[:, [0, 2]] = similarities(weighted_question, weighted_texts).reshape(2, -1).T
        if self.meaning is not None and vector is not None:
            rated = np.array([pair.number is None for pair in pairs])
            numbers = [pair.number for pair in pairs if pair.number is not None]
            questions, replies = self.meaning.pair_vectors(numbers)
            values[~rated, 1] = dots(questions, vector)
            values[~rated, 3:] = self.meaning.likeness(vector, replies, numbers)
            if rated.any():
                questions, replies = (self.meaning.vectors([side[i] for i in np.flatnonzero(rated)]) for side in texts)
                values[rated, 1] = dots(questions, vector)
                values[rated, 3:] = self.meaning.likeness(vector, replies)
        return values

    def _read_pair(self, number: int) -> Pair:
        question, reply = (rows.row(number).tolist() for rows in (self._questions, self._replies))
        return Pair(self._vocabulary.text(question), self._vocabulary.text(reply), reply, number=number)

    def count(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
        """Return how many of the given pairs of question ids and reply ids are in the index."""
        sides = [Ragged.from_rows(rows) for rows in zip(*pairs, strict=True)]
        alike = np.flatnonzero(np.isin(_keys(self._questions, self._replies), _keys(*sides))).tolist()
        known = {(tuple(self._questions.row(i).tolist()), tuple(self._replies.row(i).tolist())) for i in alike}
        return sum((tuple(question), tuple(reply)) in known for question, reply in pairs)

    def log_probability(self, reply: Sequence[int]) -> float:
        """Return the unigram log-probability of a reply, including EOS, in nats."""
        return float(sum(self._token_log_probs[token] for token in (*reply, EOS)))


class PairTexts(Sequence[str]):
    """The texts of one side of all pairs, which are decoded when they are read."""

    def __init__(self, rows: Ragged, vocabulary: Vocabulary) -> None:
        self._rows = rows
        self._vocabulary = vocabulary

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._vocabulary.text(self._rows.row(index).tolist())


def _keys(*sides: Ragged) -> npt.NDArray[np.uint64]:
    """Return a hash of each pair, computed from its lengths, first ids and last ids."""
    keys = np.zeros(len(sides[0]), np.uint64)
    for rows in sides:
        for part in (rows.lengths, rows.flat[rows.starts], rows.flat[rows.starts + rows.lengths - 1]):
            keys = keys * np.uint64(1_000_003) + part.astype(np.uint64)
    return keys


def load_retrieval(folder: Path, vocabulary: Vocabulary) -> Retrieval | None:
    """Load the index in a folder, or return None if the folder does not exist. Raises UserError if it is damaged."""
    return Retrieval(folder, vocabulary) if folder.exists() else None
