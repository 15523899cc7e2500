"""Tokenises questions and chooses the search for their replies. TensorFlow is not required."""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chatbot.config.corpus import AUTO
from chatbot.config.decoding import DecodingSettings, over_default
from chatbot.config.training import Settings
from chatbot.corpus.tokenizer import tokens_of
from chatbot.corpus.vocabulary import Vocabulary, question_of, source_of
from chatbot.decoding.interface import Model
from chatbot.decoding.reply_text import MAX_CHARACTERS, Origin, ReplyText, WordAttention, attention_by_word
from chatbot.decoding.sampling import uniform_numbers
from chatbot.inference.replier import Replier, Source, for_attempt, reply_automaton
from chatbot.inference.request import Question, Request
from chatbot.inference.row_batch import PendingReply, TokenSelector
from chatbot.inference.rules import fixed_answer, read_rules
from chatbot.retrieval.index import Retrieval

# The reply to a question without visible characters.
EMPTY_QUESTION_REPLY = "（请说点什么 / please say something）"
# The number of searches to cache. Requests can choose among ten beam sizes.
MAX_SEARCHES = 16
# Settings that do not change the graph of a search. Cache keys use these values in place of the actual ones.
OUTSIDE_SEARCH = {
    **{name: getattr(DecodingSettings, name) for name in ("seed", "min_score", "fallback", "rules", "n_best")},
    "retrieve": AUTO,
}


class TextResponder:
    """Converts questions to token ids and decoding settings to searches. This class is thread-safe.

    Args:
        model: The model.
        vocabulary: The vocabulary of the model.
        settings: The settings of the attempt.
        decoding: The decoding settings for questions that do not specify any.
        retrieval: The index of the training pairs, if the attempt has one.
        default: The search to use if the decoding settings do not choose one.

    Attributes:
        chosen: The unchanged `decoding` argument.
        decoding: The decoding settings with the default search filled in.

    Raises:
        UserError: The attempt does not support the decoding settings.
    """

    def __init__(
        self,
        model: Model,
        vocabulary: Vocabulary,
        settings: Settings,
        decoding: DecodingSettings,
        retrieval: Retrieval | None = None,
        default: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.vocabulary = vocabulary
        self.settings = settings
        self.retrieval = retrieval
        self.chosen = decoding
        self._default = default or {}
        self._tokens = tokens_of(settings.corpus)
        self._max_length = settings.model.max_length
        self._turns = settings.encoding.history
        self._read_rules = functools.lru_cache(read_rules)
        self._replier_of_search = functools.lru_cache(MAX_SEARCHES)(self._make_replier)
        self._selector_of = functools.lru_cache(64)(self._make_selector)
        self.decoding = over_default(decoding, self._default)
        self.replier = self._make_replier(self.decoding)
        self.decoding = self.completed(decoding)

    def completed(self, decoding: DecodingSettings) -> DecodingSettings:
        """Fill in the default search if the decoding settings do not choose one.

        Raises:
            UserError: The attempt does not support the decoding settings.
        """
        complete = over_default(decoding, self._default)
        if complete.rules is not None:
            self._read_rules(Path(complete.rules))
        return self.replier_for(complete).decoding

    def replier_for(self, decoding: DecodingSettings | None) -> Replier:
        """Return a replier for the given decoding settings, or the default replier if None.

        Settings that differ only in retrieval and seed get the same search, because tracing its graph takes seconds.

        Raises:
            UserError: The attempt does not support the decoding settings.
        """
        if decoding is None or decoding == self.decoding:
            return self.replier
        search = dataclasses.replace(decoding, **OUTSIDE_SEARCH)
        is_default_search = search == dataclasses.replace(self.decoding, **OUTSIDE_SEARCH)
        replier = self.replier if is_default_search else self._replier_of_search(search)
        return replier.with_lookup(dataclasses.replace(decoding, ban=replier.decoding.ban))

    def _make_replier(self, decoding: DecodingSettings) -> Replier:
        decoding = for_attempt(decoding, self.settings, self.vocabulary)
        return Replier(self.model, self.vocabulary, self.settings.model, decoding, self.retrieval)

    def begin(self, request: Request, source: Sequence[int], decoding: DecodingSettings) -> list[PendingReply]:
        """Create the replies to a question. They are still empty; a `RowBatch` generates their tokens.

        Args:
            request: The request.
            source: The ids of the question, at least one.
            decoding: Decoding settings that need no search.

        Raises:
            UserError: The attempt does not support the decoding settings.
        """
        question = request.question
        length = self._max_length
        selector = self._selector_of(decoding)
        uniform = np.zeros((question.replies, length), np.float32)
        if decoding.samples:
            seed = decoding.seed if question.seed is None else question.seed
            (uniform,) = uniform_numbers([seed], [source], question.replies, length)
        request.question_tokens = len(source)
        request.unfinished = question.replies
        stops = (*decoding.stop, *question.stop)
        limit = min(question.max_tokens or length, length)
        return [
            PendingReply(request, number, source, selector, row, ReplyText(self.vocabulary, stops, []), limit)
            for number, row in enumerate(uniform)
        ]

    def _make_selector(self, decoding: DecodingSettings) -> TokenSelector:
        if decoding.top_k is not None:  # Clients do not know the size of the vocabulary.
            decoding = dataclasses.replace(decoding, top_k=min(decoding.top_k, len(self.vocabulary)))
        decoding = for_attempt(decoding, self.settings, self.vocabulary)
        if decoding.ban == self.replier.decoding.ban:
            return TokenSelector(decoding, self.replier.automaton)
        return TokenSelector(decoding, reply_automaton(decoding, self.vocabulary, self._max_length))

    def fixed_reply(self, text: str, source: Sequence[int], decoding: DecodingSettings | None = None) -> str | None:
        """Return the answer of a rule, the reply to an empty question, or None if the model must reply.

        Args:
            text: The text of the question.
            source: The ids of the question and its history, or an empty list if the text has no visible characters.
            decoding: The decoding settings of the question, or None for the default settings.
        """
        file = (decoding or self.decoding).rules
        answer = None if file is None else fixed_answer(self._read_rules(Path(file)), text[:MAX_CHARACTERS])
        return answer if answer is not None or source else EMPTY_QUESTION_REPLY

    def attention(self, text: str, reply: str, history: Sequence[str] = ()) -> WordAttention | None:
        """Return how much each word of a reply attends to each word of the question and its history.

        The reply is cut to --max-length tokens, the capacity of an exported Transformer's cache.

        Args:
            text: A question with visible characters.
            reply: The reply to the question.
            history: The previous turns of the conversation, oldest first.

        Returns:
            The attention weights, or None if the model has no attention.
        """
        if self.settings.model.attention == "none":
            return None
        ids = self.vocabulary.reply_ids(self._tokens(reply[:MAX_CHARACTERS]))[: self._max_length]
        question = self.source(text, history).ids
        (weights,) = self.model.attention([question], [ids])
        return attention_by_word(self.vocabulary, question, ids, weights)

    def origin(
        self, text: str, reply: str, history: Sequence[str] = (), decoding: DecodingSettings | None = None
    ) -> Origin:
        """Return where a reply came from: a training pair, a rated reply or the model."""
        source = self.source(text, history)
        return self.replier_for(decoding).origin(source, reply) if source.ids else Origin()

    def source(self, text: str, history: Sequence[str]) -> Source:
        """Tokenise a question and its history.

        Earlier turns are included as long as they fit and have visible characters.
        """
        last_lines, question = self._question_ids(text)
        turns = [last_lines]
        for turn in reversed(history[max(0, len(history) - self._turns) :]):
            if sum(map(len, turns)) >= self._max_length or not (ids := self.ids(turn)):
                break  # The input is full, or this turn has no visible characters.
            turns.insert(0, ids)
        ids = source_of(turns, self.vocabulary, self._max_length) if question else []
        return Source(ids[: self._max_length], question)

    def _question_ids(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of the last lines of a question that fit into the model, but at least one, and of all lines.

        Each line is a message of the user. Blank lines are dropped. Doubling and bisection find the number of lines,
        because each attempt must tokenise the lines again.
        """
        lines = [line for line in text.split("\n") if line.strip()]
        ends = itertools.accumulate(len(line) + 1 for line in reversed(lines))
        lines = lines[-max(1, sum(end <= MAX_CHARACTERS for end in ends)) :]

        def ids_of_last(count: int) -> list[int]:
            return self.ids("\n".join(lines[len(lines) - count :]))

        count = min(1, len(lines))
        while len(ids := ids_of_last(count)) <= self._max_length and count < len(lines):
            count = min(2 * count, len(lines))
        all_ids = ids if count == len(lines) else ids_of_last(len(lines))
        if len(ids) <= self._max_length or count == 1:
            return ids, all_ids
        first_too_long = bisect.bisect_right(range(count), self._max_length, lo=1, key=lambda n: len(ids_of_last(n)))
        return ids_of_last(first_too_long - 1) or ids_of_last(first_too_long), all_ids

    def read_part(self, question: Question, source: Source, is_retrieved: bool = False) -> str:
        """Return the part of a question that was read for a reply, or an empty string if all of it was read.

        Args:
            question: The question.
            source: The ids of the question.
            is_retrieved: Whether the reply was retrieved. Retrieval reads the question up to MAX_CHARACTERS, and the
                model up to --max-length tokens.
        """
        is_whole = is_retrieved or source.ids[-len(source.question) :] == source.question
        if is_whole and not question.is_cut and len(question.text) <= MAX_CHARACTERS:
            return ""
        return self.vocabulary.text(source.question if is_retrieved else question_of(source.ids, self.vocabulary))

    def ids(self, text: str) -> list[int]:
        """Clean and tokenise a text in the same way as the training pairs, and return its token ids."""
        return self.vocabulary.ids(self._tokens(text[:MAX_CHARACTERS]))
