"""Ratings of replies change what is looked up, without training. It needs no TensorFlow."""

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from chatbot.config.training import Settings
from chatbot.corpus.tokenizer import tokens_of
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.decoding.reply_text import MAX_CHARACTERS
from chatbot.retrieval.characters import CharacterIndex, character_index
from chatbot.retrieval.embeddings import Vectors
from chatbot.retrieval.index import ELSEWHERE, Pair, Retrieval
from chatbot.retrieval.ratings import OPERATOR, GivenReply, Rating, files_of, given_replies
from chatbot.retrieval.vectors import dots

# By as many clients, more say the one of a reply than the other: none decides alone, nor against another.
LEAST_MARGIN = 2
_Key = tuple[str, str]  # a question and a reply


class _Part(NamedTuple):
    """Rated pairs, the newest first; the index of their questions, and their vectors, None without embeddings."""

    keys: list[_Key]
    questions: CharacterIndex
    vectors: Vectors | None


class RatedRetrieval(Retrieval):
    """The training pairs of an attempt, with the replies that were rated.

    A reply that was rated good is offered, as the reply to its question. A reply that was rated bad is not offered for
    questions that are most like its question, or like the one that it was written to. The last rating of a client
    counts. The operator's decides; without one, LEAST_MARGIN more clients say good than bad, or bad than good.

    folder, vocabulary: as for `Retrieval`. settings: those of the attempt. path: the file of ratings; what others
    append is added. names: of the attempt, and of its export.
    """

    is_rated = True

    def __init__(self, folder: Path, vocabulary: Vocabulary, settings: Settings, path: Path, *names: str) -> None:
        super().__init__(folder, vocabulary)
        self._tokens = tokens_of(settings.corpus)
        self._max_length = settings.model.max_length
        self._path = path
        self._names = names
        self._lock = threading.Lock()
        self._version: tuple[int, ...] = ()  # of the file that was read
        self._forget()

    def _forget(self) -> None:
        self._end = 0  # of what was read of the file
        # By client; "": good as the reply that the training pair has anyway.
        self._votes: dict[_Key, dict[str, Rating | Literal[""]]] = {}
        self._rated: dict[_Key, Pair | None] = {}  # those of all parts; None: no longer decided
        self._parts: list[_Part] = []  # the newest first, each larger than the one before it

    def _similar_pairs(self, question: str, vector: Vectors | None, number: int) -> list[Pair]:
        keys: list[_Key] = []
        for part in self._read():
            numbers = part.questions.nearest(question, number)[0].tolist()
            if part.vectors is not None and vector is not None:
                numbers += np.argsort(-dots(part.vectors, vector), kind="stable")[:number].tolist()
            keys += [part.keys[i] for i in numbers]
        # The rating of a training pair is before it, and is the one that counts.
        pairs = [pair for key in dict.fromkeys(keys) if (pair := self._rated.get(key))]
        return [*pairs, *super()._similar_pairs(question, vector, number)]

    def _read(self) -> list[_Part]:
        """Return the rated pairs, as the files have them now."""
        with self._lock:
            version: tuple[int, ...] = ()
            with contextlib.suppress(OSError):
                status = self._path.stat()
                version = status.st_ino, status.st_size, status.st_mtime_ns
            if version != self._version:
                if version[:1] != self._version[:1] or version[1:2] <= self._version[1:2]:  # nothing was appended
                    self._forget()
                self._version = version
                with contextlib.suppress(OSError):
                    self._add(given_replies(self._unread(), self._names))
            return self._parts

    def _unread(self) -> bytes:
        """Return the lines of the file that were not read; if none was, also those of full files. Raises OSError."""
        contents = [file.read_bytes() for file in files_of(self._path)[-1 if self._end else 0 :]]
        unread = b"".join(contents)[self._end :]
        lines = unread[: unread.rfind(b"\n") + 1]
        self._end = sum(map(len, contents[-1:])) - len(unread) + len(lines)
        return lines

    def _add(self, ratings: Iterable[GivenReply]) -> None:
        """Count ratings, and index the pairs that they decide."""
        changed: list[_Key] = []
        for question, reply, rating, written_to, client in ratings:
            asked = self._vocabulary.text(self._vocabulary.ids(self._tokens_of(question))[: self._max_length])
            for text in filter(None, (written_to, asked)):
                votes = self._votes.setdefault((text, reply), {})
                is_new = text == asked or rating == "bad" or votes.get(client) == "good"
                votes[client] = rating if is_new else ""
                changed.append((text, reply))
        decided = {key: self._decided(*key) for key in changed[::-1]}  # the newest first
        if keys := [key for key, pair in decided.items() if pair and key not in self._rated]:
            self._add_part(keys)
        self._rated |= {key: pair for key, pair in decided.items() if pair or key in self._rated}

    def _add_part(self, keys: list[_Key]) -> None:
        """Add a part, joined with those that are not larger, so that a pair is indexed once for each doubling."""
        vectors = self.meaning.vectors([question for question, _ in keys]) if self.meaning else None
        parts = [*self._parts]  # another thread may read the old list
        while parts and len(parts[0].keys) <= len(keys):
            part = parts.pop(0)
            keys = [*keys, *part.keys]
            vectors = None if vectors is None or part.vectors is None else np.concatenate([vectors, part.vectors])
        self._parts = [_Part(keys, character_index([question for question, _ in keys]), vectors), *parts]

    def _decided(self, question: str, reply: str) -> Pair | None:
        """Return the pair that is offered or not offered by its ratings; None if they decide nothing."""
        votes = self._votes[question, reply]
        counted = [votes[OPERATOR]] * LEAST_MARGIN if OPERATOR in votes else [*votes.values()]
        margin = len(counted) - 2 * counted.count("bad")
        if abs(margin) < LEAST_MARGIN or (margin > 0 and "good" not in counted):
            return None
        rating: Rating = "good" if margin > 0 else "bad"
        ids = self._vocabulary.reply_ids(self._tokens_of(reply)) if rating == "good" else []
        is_elsewhere = self.is_validated and any(mark in reply for mark in ELSEWHERE)
        is_usable = 0 < len(ids) <= self._max_length and not is_elsewhere
        return Pair(question, reply, ids, rating) if rating == "bad" or is_usable else None

    def _tokens_of(self, text: str) -> list[str]:
        return self._tokens(text[:MAX_CHARACTERS])
