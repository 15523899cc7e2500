"""Applies users' ratings to retrieval immediately, without training. TensorFlow is not required."""

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from chatbot.config.training import Settings
from chatbot.corpus.tokenizer import tokens_of
from chatbot.decoding.reply_text import MAX_CHARACTERS
from chatbot.retrieval.characters import CharacterIndex, character_index
from chatbot.retrieval.embeddings import Vectors
from chatbot.retrieval.index import ELSEWHERE, Pair, Retrieval
from chatbot.retrieval.ratings import OPERATOR, GivenReply, Rating, given_replies, rating_files
from chatbot.retrieval.vectors import dots

# The minimum difference between the numbers of good and bad votes, so no single client can decide alone.
MIN_MARGIN = 2
_Key = tuple[str, str]  # a question and a reply


class _Part(NamedTuple):
    """Some of the rated pairs, newest first, with the index of their questions and any embeddings."""

    keys: list[_Key]
    questions: CharacterIndex
    vectors: Vectors | None


class RatedRetrieval(Retrieval):
    """Retrieves replies from the training pairs of an attempt and from rated replies.

    A reply rated good becomes a candidate for its question. A reply rated bad is rejected for the rated question, for
    the training question it was retrieved from, and for questions that are more similar to these two than to any other
    question with this reply.

    Only the last rating of each client counts. If the operator rated a reply, this rating decides. Otherwise, the
    numbers of good and bad votes must differ by at least MIN_MARGIN.

    Args:
        retrieval: The index of the training pairs, whose arrays and embedding model are shared.
        settings: The settings of the attempt.
        path: The file of ratings. Ratings take effect as soon as they are appended to it.
        names: The names of the attempt and of its export.
    """

    is_rated = True

    def __init__(self, retrieval: Retrieval, settings: Settings, path: Path, *names: str) -> None:
        vars(self).update(vars(retrieval))
        self._tokens = tokens_of(settings.corpus)
        self._max_length = settings.model.max_length
        self._path = path
        self._names = names
        self._lock = threading.Lock()
        self._version: tuple[int, ...] = ()  # inode, size and modification time of the file when it was last read
        self._reset()

    def _reset(self) -> None:
        self._end = 0  # number of bytes of the file that have been read
        # The vote of each client on each pair. An empty vote is a good rating of a training pair.
        self._votes: dict[_Key, dict[str, Rating | Literal[""]]] = {}
        self._rated: dict[_Key, Pair | None] = {}  # pairs of all parts, or None if the votes no longer decide
        self._parts: list[_Part] = []  # newest first, each larger than its predecessor

    def _similar_pairs(self, question: str, vector: Vectors | None, number: int) -> list[Pair]:
        keys: list[_Key] = []
        for part in self._read():
            numbers = part.questions.nearest(question, number)[0].tolist()
            if part.vectors is not None and vector is not None:
                numbers += np.argsort(-dots(part.vectors, vector), kind="stable")[:number].tolist()
            keys += [part.keys[i] for i in numbers]
        # Rated pairs come first, because only the first of several equal pairs is used.
        pairs = [pair for key in dict.fromkeys(keys) if (pair := self._rated.get(key))]
        return [*pairs, *super()._similar_pairs(question, vector, number)]

    def _read(self) -> list[_Part]:
        """Read any new ratings, and return all rated pairs."""
        with self._lock:
            version: tuple[int, ...] = ()
            with contextlib.suppress(OSError):
                status = self._path.stat()
                version = status.st_ino, status.st_size, status.st_mtime_ns
            if version != self._version:
                # All ratings must be read again if the file changed in any way other than by appending.
                if version[:1] != self._version[:1] or version[1:2] <= self._version[1:2]:
                    self._reset()
                self._version = version
                with contextlib.suppress(OSError):
                    self._add_ratings(given_replies(self._read_new_lines(), self._names))
            return self._parts

    def _read_new_lines(self) -> bytes:
        """Return the complete lines that have not been read yet. The first call also reads the older files."""
        contents = [file.read_bytes() for file in rating_files(self._path)[-1 if self._end else 0 :]]
        unread = b"".join(contents)[self._end :]
        lines = unread[: unread.rfind(b"\n") + 1]
        self._end = sum(map(len, contents[-1:])) - len(unread) + len(lines)
        return lines

    def _add_ratings(self, ratings: Iterable[GivenReply]) -> None:
        """Count ratings, and index the pairs that are now decided."""
        changed: list[_Key] = []
        for question, reply, rating, written_to, client in ratings:
            rated_question = self._vocabulary.text(self._vocabulary.ids(self._tokens_of(question)))
            for text in filter(None, (written_to, rated_question)):
                votes = self._votes.setdefault((text, reply), {})
                is_new = text == rated_question or rating == "bad" or votes.get(client) == "good"
                votes[client] = rating if is_new else ""
                changed.append((text, reply))
        decisions = {key: self._decide(*key) for key in changed[::-1]}  # newest first
        if keys := [key for key, pair in decisions.items() if pair and key not in self._rated]:
            self._add_part(keys)
        self._rated |= {key: pair for key, pair in decisions.items() if pair or key in self._rated}

    def _add_part(self, keys: list[_Key]) -> None:
        """Index pairs as a new part, and merge smaller parts into it. This way, pairs are rarely indexed again."""
        vectors = self.meaning.vectors([question for question, _ in keys]) if self.meaning else None
        parts = [*self._parts]  # Copy the list, because another thread may be reading it.
        while parts and len(parts[0].keys) <= len(keys):
            part = parts.pop(0)
            keys = [*keys, *part.keys]
            vectors = None if vectors is None or part.vectors is None else np.concatenate([vectors, part.vectors])
        self._parts = [_Part(keys, character_index([question for question, _ in keys]), vectors), *parts]

    def _decide(self, question: str, reply: str) -> Pair | None:
        """Return the pair with the rating that its votes decide, or None if they do not decide."""
        votes = self._votes[question, reply]
        effective = [votes[OPERATOR]] * MIN_MARGIN if OPERATOR in votes else [*votes.values()]
        margin = len(effective) - 2 * effective.count("bad")
        if abs(margin) < MIN_MARGIN or (margin > 0 and "good" not in effective):
            return None
        rating: Rating = "good" if margin > 0 else "bad"
        ids = self._vocabulary.reply_ids(self._tokens_of(reply)) if rating == "good" else []
        is_elsewhere = self.is_validated and any(mark in reply for mark in ELSEWHERE)
        is_too_long = self.is_validated and len(ids) > self._max_length  # The model judges only what it can read.
        is_usable = ids and not is_too_long and not is_elsewhere
        return Pair(question, reply, ids, rating) if rating == "bad" or is_usable else None

    def _tokens_of(self, text: str) -> list[str]:
        return self._tokens(text[:MAX_CHARACTERS])
