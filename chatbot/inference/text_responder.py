"""Replies to any text, whatever computes them. It needs no TensorFlow."""

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chatbot.config.corpus import AUTO
from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus.history import question_of, source_of
from chatbot.corpus.tokenizer import tokens_of
from chatbot.corpus.vocabulary import Vocabulary
from chatbot.decoding.reply_text import MAX_CHARACTERS, Origin, Reply, good_enough
from chatbot.inference.questions import Message, Piece, Question, Request
from chatbot.inference.replier import Replier, for_attempt
from chatbot.inference.rows import RowBatch, RuleBook
from chatbot.inference.rules import fixed_answer, read_rules

# The reply to a text without visible characters.
EMPTY_QUESTION_REPLY = "（请说点什么 / please say something）"
# Searches of requests that are kept, which choose among 10 sizes of beams.
MOST_SEARCHES = 16

Weights = npt.NDArray[np.float32]

# The label of the end symbol.
END = "<eos>"


class WordAttention(NamedTuple):
    """The attention of a reply, word by word. A character that is spelled in bytes is one word."""

    question: list[str]
    reply: list[str]  # the last one is END
    weights: Weights  # [reply, question]; those of each word of the reply add up to 1


# (the ids of a question, of a reply) -> their attention weights, [reply + 1, question]
AttentionWeights = Callable[[Sequence[int], Sequence[int]], Weights]


class TextResponder:
    """Answers questions in text form, each by one line of text.

    settings: those of the attempt. attention: None for a model that shows no attention.
    """

    def __init__(
        self, replier: Replier, vocabulary: Vocabulary, settings: Settings, attention: AttentionWeights | None
    ) -> None:
        self.replier = replier
        self.decoding = replier.decoding
        self.vocabulary = vocabulary
        self.settings = settings
        self._attention = attention
        self._tokens = tokens_of(settings.corpus)
        self._max_length = settings.model.max_length
        self._turns = settings.encoding.history
        self._rules = [] if replier.decoding.rules is None else read_rules(Path(replier.decoding.rules))
        self.rule_book = RuleBook(replier, vocabulary, settings)
        self._replier_of_search = functools.lru_cache(MOST_SEARCHES)(self._make_replier)

    def replier_of(self, decoding: DecodingSettings | None) -> Replier:
        """Return the replier of other decoding settings, None for its own. Raises UserError as `Replier`.

        Those that differ only in what is looked up share a search, whose first use takes seconds.
        """
        if decoding is None or decoding == self.decoding:
            return self.replier
        is_own = dataclasses.replace(decoding, retrieve=self.decoding.retrieve) == self.decoding
        of_search = self.replier if is_own else self._replier_of_search(dataclasses.replace(decoding, retrieve=AUTO))
        return of_search.looking_up(decoding.retrieve)

    def _make_replier(self, decoding: DecodingSettings) -> Replier:
        decoding = for_attempt(decoding, self.settings)
        return Replier(self.replier.model, self.vocabulary, self.settings.model, decoding, self.replier.retrieval)

    def reply(self, text: str, history: Sequence[str] = (), last_reply: str | None = None) -> str:
        """Return the best reply, one line, or the fixed reply of a text.

        history: the turns before the text, the oldest first, alternately of the user and of the chatbot. A model that
        was trained with --history N reads the last N of them. last_reply: what the chatbot said last, also to a model
        that reads no turns: a looked-up reply does not repeat it. "": nothing; None: the last turn of the history.
        """
        return self.n_best(text, history, 1, last_reply=last_reply)[0].text

    def replies(self, texts: Sequence[str]) -> list[str]:
        """Return the reply to each text, without turns before it. Texts are batched, which is faster than `reply`."""
        questions = [self.source(text, ()) for text in texts]
        fixed = [self.fixed_reply(*asked) for asked in zip(texts, questions, strict=True)]
        found = iter(self.replier.replies([x for x, reply in zip(questions, fixed, strict=True) if reply is None]))
        return [next(found) if reply is None else reply for reply in fixed]

    def fixed_reply(self, text: str, source: Sequence[int]) -> str | None:
        """Return the reply to a text that is not searched for: that of --rules, or `EMPTY_QUESTION_REPLY`; else None.

        source: the ids of the text and of the turns before it, none if the text has none.
        """
        answer = fixed_answer(self._rules, text[:MAX_CHARACTERS])
        return answer if answer is not None or source else EMPTY_QUESTION_REPLY

    def attention(self, text: str, reply: str, history: Sequence[str] = ()) -> WordAttention | None:
        """Return which words of a text and of the turns before it each word of a reply to it looked at.

        None for a model that shows no attention. text: with visible characters. Of a reply that is longer than any that
        the model generates, such as one from a file, the first --max-length tokens are shown: a Transformer that is
        exported has no place for the keys of more.
        """
        if self._attention is None:
            return None
        ids = self.vocabulary.reply_ids(self._tokens(reply[:MAX_CHARACTERS]))[: self._max_length]
        question = self.source(text, history)
        return by_word(self.vocabulary, question, ids, self._attention(question, ids))

    def stream(self, text: str, history: Sequence[str] = (), last_reply: str | None = None) -> Iterator[str]:
        """Yield the reply to a text in pieces, as its tokens are found; joined, they are `reply` of the same."""
        if self.decoding.streams:
            source = self.source(text, history)
            fixed = self.fixed_reply(text, source)
            yield from self._pieces(source) if fixed is None else [fixed]
        else:
            yield from filter(None, [self.reply(text, history, last_reply)])

    def _pieces(self, source: Sequence[int]) -> Iterator[str]:
        """Yield the reply to a question in pieces. source: its ids, at least one."""
        messages: list[Message] = []
        request = Request(Question(""), messages.append)
        batch = RowBatch(self.replier.model, self._max_length)
        batch.change([self.rule_book.begin(request, source, self.decoding)])
        while batch.unfinished:
            batch.advance()
            for message in messages:
                if isinstance(message, Exception):
                    raise message
                if isinstance(message, Piece) and message.text:
                    yield message.text
            messages.clear()

    def n_best(
        self,
        text: str,
        history: Sequence[str] = (),
        number: int | None = None,
        seed: int | None = None,
        last_reply: str | None = None,
    ) -> list[Reply]:
        """Return the distinct replies with their scores, the best first.

        A text with a fixed reply has that one. history, last_reply: as in `reply`. number,
        seed: at most so many replies, and the seed of samples; None: those of the settings.
        """
        question = self.source(text, history)
        if (fixed := self.fixed_reply(text, question)) is not None:
            return [Reply(fixed, 0.0)]
        if last_reply is None:
            last_reply = history[-1] if history else ""
        (found,) = self.replier.candidates([question], [last_reply], None if seed is None else [seed])
        good = good_enough(found, self.decoding.min_score, self.decoding.fallback)
        return good[: number or self.decoding.n_best]

    def origin(self, text: str, reply: str, history: Sequence[str] = ()) -> Origin:
        """Return where a reply to a text comes from."""
        question = self.source(text, history)
        return self.replier.origin(question, reply) if question else Origin()

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


def by_word(vocabulary: Vocabulary, question: Sequence[int], reply: Sequence[int], weights: Weights) -> WordAttention:
    """Return the attention of a reply, word by word.

    question, reply: ids. weights: of the question's ids at each id of the reply and at the end symbol,
    [reply + 1, question].
    """
    question_words = words(vocabulary, question)
    reply_words = words(vocabulary, reply)
    columns = _starts(question_words)
    of_words = np.add.reduceat(weights, columns, axis=1)  # a word has the sum of its ids
    rows = _starts([*reply_words, (END, 1)])
    sizes = np.diff([*rows, len(weights)])
    of_words = np.add.reduceat(of_words, rows, axis=0) / sizes[:, None]  # and looks where its ids do on average
    return WordAttention([w for w, _ in question_words], [*(w for w, _ in reply_words), END], of_words)


def words(vocabulary: Vocabulary, ids: Sequence[int]) -> list[tuple[str, int]]:
    """Return the words that ids stand for, each with the number of its ids.

    The bytes of a character are one word, and bytes that are no whole character are U+FFFD each.
    """
    words: list[tuple[str, int]] = []
    for are_bytes, run in itertools.groupby(ids, lambda i: i >= vocabulary.first_byte):
        if are_bytes:
            text = bytes(i - vocabulary.first_byte for i in run).decode(errors="surrogateescape")
            words += [("\ufffd", 1) if "\udc80" <= c <= "\udcff" else (c, len(c.encode())) for c in text]
        else:
            words += [(token, 1) for token in vocabulary.tokens_of(run)]
    return words


def _starts(labelled: Sequence[tuple[Any, int]]) -> list[int]:
    """Return the place of the first id of each word."""
    ends = np.cumsum([size for _, size in labelled])
    return [0, *ends[:-1].tolist()]
