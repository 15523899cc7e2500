"""Replies to any text, whatever computes them. It needs no TensorFlow."""

import bisect
import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chatbot.config.corpus import AUTO
from chatbot.config.decoding import DecodingSettings, over_default
from chatbot.config.training import Settings
from chatbot.corpus.tokenizer import tokens_of
from chatbot.corpus.vocabulary import Vocabulary, question_of, source_of
from chatbot.decoding.interface import Model
from chatbot.decoding.reply_text import MAX_CHARACTERS, Origin, ReplyText, WordAttention, by_word
from chatbot.decoding.sampling import uniform_numbers
from chatbot.errors import UserError
from chatbot.inference.replier import Replier, check_decoding, for_attempt, reply_automaton
from chatbot.inference.request import Question, Request
from chatbot.inference.rows import TokenChoice, UnfinishedReply
from chatbot.retrieval.index import Retrieval

# The reply to a text without visible characters.
EMPTY_QUESTION_REPLY = "（请说点什么 / please say something）"
# Searches of requests that are kept, which choose among 10 sizes of beams.
MOST_SEARCHES = 16
# Settings on which the graph of a search does not depend, with values that need nothing else.
BESIDE_SEARCH = {
    **{name: getattr(DecodingSettings, name) for name in ("seed", "min_score", "fallback", "rules", "n_best")},
    "retrieve": AUTO,
}


class Rule(NamedTuple):
    """A pattern that is searched for anywhere in a question, and the answer to that question."""

    pattern: re.Pattern[str]
    answer: str


def read_rules(path: Path) -> list[Rule]:
    """Return the rules in a UTF-8 file, one `PATTERN<TAB>ANSWER` a line.

    PATTERN is a regular expression of Python, in which upper and lower case are the same. Blank lines, and those that
    begin with #, are left out. Raises UserError for a file that cannot be read, and names the line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "it is not UTF-8"
        raise UserError(f"--rules {path}: cannot be read ({reason}); give a text file of PATTERN<TAB>ANSWER") from None
    rules = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, answer = (part.strip() for part in line.partition("\t"))
        if not pattern or not answer or "\t" in answer:
            raise UserError(f"--rules {path}: line {number:,} is not PATTERN<TAB>ANSWER; correct it")
        try:
            rules.append(Rule(re.compile(pattern, re.IGNORECASE), answer))
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(f"--rules {path}: line {number:,}: {error}; correct the pattern") from None
    return rules


def fixed_answer(rules: list[Rule], question: str) -> str | None:
    """Return the answer of the first rule whose pattern is in the question, None if there is none."""
    return next((rule.answer for rule in rules if rule.pattern.search(question)), None)


class TextResponder:
    """What a model makes of any text: the ids that it reads, the search that answers them, and fixed replies.

    Any thread may use it. settings: those of the attempt. decoding: of questions that have none of their own.
    retrieval: the training pairs, if they can be looked up. default: the search of decoding settings that choose none.
    Raises UserError for decoding settings that the attempt does not admit.

    chosen, decoding: the settings as they were given, and with the default search if they choose none.
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
        self._rules_in = functools.lru_cache(read_rules)
        self._replier_of_search = functools.lru_cache(MOST_SEARCHES)(self._make_replier)
        self._choice_of = functools.lru_cache(64)(self._make_choice)
        self.decoding = over_default(decoding, self._default)
        self.replier = self._make_replier(self.decoding)
        self.decoding = self.completed(decoding)

    def completed(self, decoding: DecodingSettings) -> DecodingSettings:
        """Return decoding settings with the default search if they choose none.

        Raises UserError for those that the attempt does not admit.
        """
        whole = over_default(decoding, self._default)
        if whole.rules is not None:
            self._rules_in(Path(whole.rules))
        return self.replier_of(whole).decoding

    def replier_of(self, decoding: DecodingSettings | None) -> Replier:
        """Return the replier of decoding settings, None for the own ones. Raises UserError as `Replier`.

        Those that differ only in what is looked up, and in the seed, share a search, whose first use takes seconds.
        """
        if decoding is None or decoding == self.decoding:
            return self.replier
        search = dataclasses.replace(decoding, **BESIDE_SEARCH)
        is_own = search == dataclasses.replace(self.decoding, **BESIDE_SEARCH)
        of_search = self.replier if is_own else self._replier_of_search(search)
        return of_search.looking_up(dataclasses.replace(decoding, ban=of_search.decoding.ban))

    def _make_replier(self, decoding: DecodingSettings) -> Replier:
        decoding = for_attempt(decoding, self.settings)
        return Replier(self.model, self.vocabulary, self.settings.model, decoding, self.retrieval)

    def begin(self, request: Request, source: Sequence[int], decoding: DecodingSettings) -> list[UnfinishedReply]:
        """Return the replies to a question before their first id.

        source: the ids of the question, at least one. decoding: settings of one reply. Raises UserError for settings
        that the model does not admit.
        """
        question = request.question
        length = self._max_length
        choice = self._choice_of(decoding)
        uniform = np.zeros((question.replies, length), np.float32)
        if decoding.samples:
            seed = decoding.seed if question.seed is None else question.seed
            (uniform,) = uniform_numbers([seed], [source], question.replies, length)
        request.question_tokens = len(source)
        request.unfinished = question.replies
        stops = (*decoding.stop, *question.stop)
        limit = min(question.max_tokens or length, length)
        return [
            UnfinishedReply(request, number, source, choice, row, ReplyText(self.vocabulary, stops, []), limit)
            for number, row in enumerate(uniform)
        ]

    def _make_choice(self, decoding: DecodingSettings) -> TokenChoice:
        decoding = for_attempt(decoding, self.settings)
        if decoding.top_k is not None:  # of a request, whose client does not know the vocabulary
            decoding = dataclasses.replace(decoding, top_k=min(decoding.top_k, len(self.vocabulary)))
        check_decoding(decoding, self.vocabulary, self.settings.model)
        if decoding.ban == self.replier.decoding.ban:
            return TokenChoice(decoding, self.replier.automaton)
        return TokenChoice(decoding, reply_automaton(decoding, self.vocabulary, self._max_length))

    def fixed_reply(self, text: str, source: Sequence[int], decoding: DecodingSettings | None = None) -> str | None:
        """Return the reply to a text that is not searched for: that of --rules, or `EMPTY_QUESTION_REPLY`; else None.

        source: the ids of the text and of the turns before it, none if the text has none. decoding: of the question.
        """
        file = (decoding or self.decoding).rules
        answer = None if file is None else fixed_answer(self._rules_in(Path(file)), text[:MAX_CHARACTERS])
        return answer if answer is not None or source else EMPTY_QUESTION_REPLY

    def attention(self, text: str, reply: str, history: Sequence[str] = ()) -> WordAttention | None:
        """Return which words of a text and of the turns before it each word of a reply to it looked at.

        None for a model that shows no attention. text: with visible characters. Of a reply that is longer than any that
        the model generates, such as one from a file, the first --max-length tokens are shown: a Transformer that is
        exported has no place for the keys of more.
        """
        if self.settings.model.attention == "none":
            return None
        ids = self.vocabulary.reply_ids(self._tokens(reply[:MAX_CHARACTERS]))[: self._max_length]
        question = self.source(text, history)
        return by_word(self.vocabulary, question, ids, self.model.attention(question, ids))

    def origin(
        self, text: str, reply: str, history: Sequence[str] = (), decoding: DecodingSettings | None = None
    ) -> Origin:
        """Return where a reply to a text comes from. decoding: of the question."""
        question = self.source(text, history)
        return self.replier_of(decoding).origin(question, reply) if question else Origin()

    def source(self, text: str, history: Sequence[str]) -> list[int]:
        """Return the ids of a text and the turns before it, as the model reads them; [] if the text has no ids.

        Nothing is read of the turns up to the last one without visible characters.
        """
        turns = [self._question_ids(text)]
        for turn in reversed(history[max(0, len(history) - self._turns) :]):
            if sum(map(len, turns)) >= self._max_length or not (ids := self.ids(turn)):
                break  # no further turn fits, or there is none
            turns.insert(0, ids)
        return source_of(turns, self.vocabulary, self._max_length)[: self._max_length] if turns[-1] else []

    def _question_ids(self, text: str) -> list[int]:
        """Return the ids of a text. Of one that is longer than the model reads, the last lines that fit are kept.

        The messages of a user that follow one another are lines. Blank lines are left out. A line with ids is kept,
        however long it is. The number of lines is found by doubling, then by bisection: each try tokenises them anew.
        """
        lines = [line for line in text.split("\n") if line.strip()]
        ends = itertools.accumulate(len(line) + 1 for line in reversed(lines))
        lines = lines[-max(1, sum(end <= MAX_CHARACTERS for end in ends)) :]

        def last(number: int) -> list[int]:
            return self.ids("\n".join(lines[len(lines) - number :]))

        number = min(1, len(lines))
        while len(ids := last(number)) <= self._max_length and number < len(lines):
            number = min(2 * number, len(lines))
        if len(ids) <= self._max_length or number == 1:
            return ids
        least = bisect.bisect_right(range(number), self._max_length, lo=1, key=lambda n: len(last(n)))
        return last(least - 1) or last(least)

    def part_read(self, asked: Question, source: Sequence[int]) -> str:
        """Return the part of a question that the model reads; "" for all of it. source: its ids, at least one."""
        may_be_cut = asked.is_cut or "\n" in asked.text or len(source) >= self._max_length
        read = question_of(source, self.vocabulary) if may_be_cut else []
        return self.vocabulary.text(read) if asked.is_cut or (may_be_cut and read != self.ids(asked.text)) else ""

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text, cleaned and tokenised as the training pairs were; [] without visible characters."""
        return self.vocabulary.ids(self._tokens(text[:MAX_CHARACTERS]))
