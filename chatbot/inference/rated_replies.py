"""Ratings of replies change what is looked up, without training. It needs no TensorFlow."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chatbot.config.training import Settings
from chatbot.corpus.embeddings import Vectors
from chatbot.corpus.meaning import dots
from chatbot.corpus.retrieval import ELSEWHERE, Pair, Retrieval
from chatbot.corpus.similarity import CharacterIndex, character_index
from chatbot.corpus.tokenizer import tokens_of
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.inference.ratings import GivenReply, Rating, given_replies
from chatbot.inference.text_responder import MAX_CHARACTERS


class _Rated(NamedTuple):
    """The rated pairs; the index of their questions, None without any, and their vectors, None without embeddings."""

    pairs: list[Pair]
    questions: CharacterIndex | None
    vectors: Vectors | None


class RatedRetrieval(Retrieval):
    """The training pairs of an attempt, with the replies that were rated.

    A reply that was rated good is offered, as the reply to its question. A reply that was rated bad is not offered for
    questions that are most like its question, or like the one that it was written to. The last rating of a pair counts.

    folder, vocabulary: as for `Retrieval`. settings: those of the attempt. path: the file of ratings, which is read
    again when it has changed. names: of the attempt, and of its export.
    """

    is_rated = True

    def __init__(self, folder: Path, vocabulary: Vocabulary, settings: Settings, path: Path, *names: str) -> None:
        super().__init__(folder, vocabulary)
        self._tokens, self._max_length = tokens_of(settings.corpus), settings.model.max_length
        self._path, self._names = path, names
        self._lock = threading.Lock()
        self._version: Any = None  # of the file that was read
        self._rated = _Rated([], None, None)

    def _similar_pairs(self, question: str, vector: Vectors | None, number: int) -> list[Pair]:
        rated = self._read()
        numbers = [] if rated.questions is None else rated.questions.nearest(question, number)[0].tolist()
        if rated.vectors is not None and vector is not None:
            numbers += np.argsort(-dots(rated.vectors, vector), kind="stable")[:number].tolist()
        # The rating of a training pair is before it, and is the one that counts.
        pairs = [rated.pairs[i] for i in dict.fromkeys(numbers)]
        return [*pairs, *super()._similar_pairs(question, vector, number)]

    def _read(self) -> _Rated:
        """Return the rated pairs, as the file has them now."""
        with self._lock:
            try:
                status = self._path.stat()
                version = status.st_mtime_ns, status.st_size, status.st_ino
            except OSError:
                version = None
            if version != self._version:
                # Of equally similar pairs, the first ones are looked up: the newest.
                pairs = [*self._pairs(given_replies(self._path, self._names))][::-1]
                questions = [pair.question for pair in pairs]
                vectors = self.meaning.vectors(questions) if self.meaning and pairs else None
                self._rated = _Rated(pairs, character_index(questions) if pairs else None, vectors)
                self._version = version
            return self._rated

    def _pairs(self, ratings: list[GivenReply]) -> Iterator[Pair]:
        """Yield the pairs that are offered or not offered by their ratings."""
        last: dict[tuple[str, str], Rating] = {}
        for question, reply, rating, written_to in ratings:
            asked = self._vocabulary.text(self._vocabulary.ids(self._tokens_of(question))[: self._max_length])
            earlier = [last.pop((text, reply), None) for text in (asked, written_to)]  # so that the new one is the last
            if rating == "bad":
                last[written_to, reply] = rating
            elif earlier[1] == "good":
                last[written_to, reply] = "good"
            last[asked, reply] = rating
        for (question, reply), rating in last.items():
            ids = self._vocabulary.reply_ids(self._tokens_of(reply)) if rating == "good" else []
            is_elsewhere = self.is_validated and any(mark in reply for mark in ELSEWHERE)
            is_usable = 0 < len(ids) <= self._max_length and not is_elsewhere
            if rating == "bad" or is_usable:
                yield Pair(question, reply, ids, rating)

    def _tokens_of(self, text: str) -> list[str]:
        return self._tokens(text[:MAX_CHARACTERS])
