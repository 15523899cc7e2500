"""The training pairs of an attempt on disk, found by the similarity of their questions."""

import functools
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import EOS, Vocabulary
from chatbot.durable import read_json
from chatbot.errors import UserError
from chatbot.retrieval.characters import CharacterIndex, WeighedText, similarities

if TYPE_CHECKING:
    from chatbot.retrieval.vectors import Meaning, Vectors

# The arrays of the index, and of the pairs: the ids of questions and replies, their lengths, [pairs, 2], and the
# log-probability of each token in replies, [vocabulary].
ARRAYS = ("grams", "starts", "texts", "weights")
PAIRS = QUESTIONS, REPLIES, LENGTHS, TOKENS = "questions", "replies", "lengths", "tokens"
DESCRIPTION = "index.json"
# Of the folder: the vectors of the pairs, if --embeddings was given, and the weights by which replies are judged.
MEANING = "meaning"
JUDGE = "judge.json"
# Increase this whenever the files mean something else.
VERSION = 2
# A reply with one of these is about a person, or a page, of another conversation.
ELSEWHERE = ("@", "http://", "https://", "www.")
# Several questions have the same reply: as many pairs are looked up for each reply that is wanted.
PAIRS_PER_REPLY = 2
# Pairs whose texts and characters are kept, about a kilobyte each: users ask about much the same things.
KEPT_PAIRS = 10_000


class Pair(NamedTuple):
    """A question and a reply to it, with the ids of the reply, without begin and end symbols.

    rating: "good" or "bad"; "" for a training pair. number: of a training pair.
    """

    question: str
    reply: str
    ids: list[int]
    rating: str = ""
    number: int | None = None


class Retrieved(NamedTuple):
    """A reply that a person wrote to a question like the one that was asked."""

    pair: Pair
    similarity: float  # of the questions: 1 if they are equal, 0 if they share no character
    meaning: float  # of the questions: 1 if they mean the same; 0 without embeddings
    shared: float  # the similarity of the reply to the question that was asked
    shared_meaning: float  # the same by meaning; 0 without embeddings
    fit: float  # how like the question is to what precedes such replies; 0 without embeddings


class Retrieval:
    """Replies to the most similar training questions. The arrays are mapped into memory; any thread may use them.

    folder: what `write_retrieval` wrote. Raises UserError for one that is damaged, or of another vocabulary.

    is_validated: whether validation measured the model. meaning: the vectors of the pairs, if they were made. weights,
    least: how replies are judged, and the score of the least that is given; None where nothing was learned of it.
    """

    is_rated = False  # whether ratings change what is offered

    def __init__(self, folder: Path, vocabulary: Vocabulary, reads_meaning: bool = True) -> None:
        remedy = "remove that folder, and train this attempt again, which writes it"
        try:
            description = read_json(folder / DESCRIPTION)
            # As plain arrays: a slice of NumPy's class for mapped files takes several times as long.
            arrays = {
                name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
                for name in (*ARRAYS, *PAIRS)
            }
            index = CharacterIndex(len(arrays[LENGTHS]), description["mean_length"], **{n: arrays[n] for n in ARRAYS})
            lengths = arrays[LENGTHS].astype(np.int64)
            sizes_agree = [len(arrays[name]) for name in (QUESTIONS, REPLIES)] == lengths.sum(axis=0).tolist()
            is_of_vocabulary = description["vocabulary"] == vocabulary.fingerprint()
            sizes_agree &= len(arrays[TOKENS]) == len(vocabulary) or not is_of_vocabulary
            sizes_agree &= len(arrays["grams"]) + 1 == len(arrays["starts"])
            sizes_agree &= len(arrays["texts"]) == len(arrays["weights"]) == int(arrays["starts"][-1])
            is_whole = sizes_agree and description["version"] == VERSION
            judge = read_json(folder / JUDGE) if (folder / JUDGE).exists() else {}
            self.weights = {name: float(x) for name, x in judge["weights"].items()} if judge else None
            self.least = None if judge.get("least") is None else float(judge["least"])
        except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError):
            is_whole = False
        if not is_whole:
            raise UserError(f"{folder}: damaged, or of another version; {remedy}")
        if not is_of_vocabulary:
            raise UserError(f"{folder}: of another attempt, whose vocabulary differs; {remedy}")
        self.is_validated = bool(description.get("validated", True))
        self.key = {name: description.get(name) for name in ("corpus", "vocabulary", "most")}  # tells pairs apart
        reads_meaning &= (folder / MEANING).exists()
        self.meaning = _meaning(folder / MEANING, len(lengths), self.key) if reads_meaning else None
        self._index, self._vocabulary, self._of_tokens = index, vocabulary, arrays[TOKENS].tolist()
        self._questions, self._replies = (
            Ragged.from_lengths(arrays[name], lengths[:, side]) for side, name in enumerate((QUESTIONS, REPLIES))
        )
        self._pair = functools.lru_cache(KEPT_PAIRS)(self._read_pair)
        self._kept: dict[str, WeighedText] = {}

    def __len__(self) -> int:
        return len(self._questions)

    def texts(self) -> tuple[list[str], list[str]]:
        """Return the questions and the replies of all pairs."""
        questions, replies = (
            [self._vocabulary.text(rows.row(i).tolist()) for i in range(len(rows))]
            for rows in (self._questions, self._replies)
        )
        return questions, replies

    def nearest(self, questions: Sequence[str], number: int, without: Set[int] = frozenset()) -> list[list[Retrieved]]:
        """Return for each question different replies to the most similar questions, the most similar first.

        There are at most `number` by characters, and as many more by meaning. A reply whose most similar pair was rated
        bad is left out. without: numbers of pairs that are left out, too.
        """
        if self.meaning is None:
            vectors = [None] * len(questions)
            most = number
        else:
            vectors = [*self.meaning.vectors(questions)]
            most = 2 * number
        found = []
        for question, vector in zip(questions, vectors, strict=True):
            pairs = self._similar_pairs(question, vector, PAIRS_PER_REPLY * number + len(without))
            pairs = [pair for pair in pairs if pair.number not in without]
            different: dict[str, Retrieved] = {}
            values = self._likenesses(question, vector, pairs)
            for i in np.argsort(-values[:, :2].sum(axis=1), kind="stable").tolist():
                different.setdefault(pairs[i].reply, Retrieved(pairs[i], *values[i].tolist()))
            found.append([one for one in different.values() if one.pair.rating != "bad"][:most])
        return found

    def likeness(self, questions: Sequence[str], replies: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return how near replies are, each to its own question, at least one: [replies, 3], as in `Retrieved`."""
        values = np.zeros([len(replies), 3])
        for row, (asked, weighed) in enumerate(zip(self._weighed(questions), self._weighed(replies), strict=True)):
            values[row, 0] = similarities(asked, [weighed])[0]
        if self.meaning is not None:
            values[:, 1:] = self.meaning.likeness(self.meaning.vectors(questions), self.meaning.vectors(replies))
        return values

    def _similar_pairs(self, question: str, vector: "Vectors | None", number: int) -> list[Pair]:
        """Return the pairs with the most similar questions, of training about `number` by each measure."""
        numbers = self._index.nearest(question, number)[0].tolist()
        if self.meaning is not None and vector is not None:
            numbers += self.meaning.nearest(vector, number)
        return [self._pair(i) for i in dict.fromkeys(numbers)]

    def _likenesses(self, question: str, vector: "Vectors | None", pairs: Sequence[Pair]) -> npt.NDArray[np.float64]:
        """Return the similarities of pairs to a question, [pairs, 5], as in `Retrieved`."""
        values = np.zeros([len(pairs), 5])
        if not pairs:
            return values
        texts = [pair.question for pair in pairs], [pair.reply for pair in pairs]
        asked, *weighed = self._weighed([question, *texts[0], *texts[1]])
        values[:, [0, 2]] = similarities(asked, weighed).reshape(2, -1).T
        if self.meaning is not None and vector is not None:
            from chatbot.retrieval.vectors import dots

            rated = np.array([pair.number is None for pair in pairs])
            numbers = [pair.number for pair in pairs if pair.number is not None]
            questions, replies = self.meaning.of_pairs(numbers)
            values[~rated, 1] = dots(questions, vector)
            values[~rated, 3:] = self.meaning.likeness(vector, replies, numbers)
            if rated.any():
                questions, replies = (self.meaning.vectors([side[i] for i in np.flatnonzero(rated)]) for side in texts)
                values[rated, 1] = dots(questions, vector)
                values[rated, 3:] = self.meaning.likeness(vector, replies)
        return values

    def _weighed(self, texts: Sequence[str]) -> list[WeighedText]:
        """Return the characters of texts, of which those that are looked up often are kept."""
        kept = self._kept  # another thread may replace it
        missing = [text for text in dict.fromkeys(texts) if text not in kept]
        new = dict(zip(missing, self._index.weighed(missing), strict=True)) if missing else {}
        weighed = [new[text] if text in new else kept[text] for text in texts]
        if len(kept) + len(new) > 2 * KEPT_PAIRS:
            self._kept = new
        else:
            kept.update(new)
        return weighed

    def _read_pair(self, number: int) -> Pair:
        question, reply = (rows.row(number).tolist() for rows in (self._questions, self._replies))
        return Pair(self._vocabulary.text(question), self._vocabulary.text(reply), reply, number=number)

    def count(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> int:
        """Return how many of some pairs are among these, with equal ids of the question and of the reply."""
        sides = [Ragged.from_rows(rows) for rows in zip(*pairs, strict=True)]
        alike = np.flatnonzero(np.isin(_keys(self._questions, self._replies), _keys(*sides))).tolist()
        known = {(tuple(self._questions.row(i).tolist()), tuple(self._replies.row(i).tolist())) for i in alike}
        return sum((tuple(question), tuple(reply)) in known for question, reply in pairs)

    def log_probability(self, reply: Sequence[int]) -> float:
        """Return the log-probability of a reply's ids and its end by the shares of tokens in all replies, in nats."""
        return float(sum(self._of_tokens[token] for token in (*reply, EOS)))


def _meaning(folder: Path, pairs: int, key: Mapping[str, Any]) -> "Meaning":
    from chatbot.retrieval.vectors import Meaning  # for attempts with --embeddings alone

    return Meaning(folder, pairs, key)


def _keys(*sides: Ragged) -> npt.NDArray[np.uint64]:
    """Return a number for each pair that equal pairs share, and few others: of its lengths, first and last ids."""
    keys = np.zeros(len(sides[0]), np.uint64)
    for rows in sides:
        for part in (rows.lengths, rows.flat[rows.starts], rows.flat[rows.starts + rows.lengths - 1]):
            keys = keys * np.uint64(1_000_003) + part.astype(np.uint64)
    return keys


def load_retrieval(folder: Path, vocabulary: Vocabulary) -> Retrieval | None:
    """Return the training pairs in a folder, or None if it does not exist. Raises UserError as `Retrieval`."""
    return Retrieval(folder, vocabulary) if folder.exists() else None
