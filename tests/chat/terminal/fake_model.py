"""A model of the chat without weights, whose replies tell what it was asked and how."""

import dataclasses
import functools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from chatbot.chat.loading import LoadedModel, ModelCard
from chatbot.config.chat import CHAT
from chatbot.config.decoding import DecodingSettings, over_default
from chatbot.config.training import Settings
from chatbot.corpus.history import question_of
from chatbot.corpus.tokenizer import SPACE
from chatbot.corpus.vocabulary import BYTES, EOS, MARKS, Vocabulary
from chatbot.decoding.automaton import BoundedAutomaton
from chatbot.decoding.model import Model
from chatbot.decoding.reply_text import Origin, Reply
from chatbot.errors import UserError, exit_code_of
from chatbot.flags import compose
from chatbot.inference.replier import reply_automaton
from chatbot.inference.text_responder import TextResponder, Weights

SLOW = "慢"  # the replies to a question with this character are slow
RAW = "坏"  # and with this one would control the terminal


class FakeReplier:
    """Replies "question/number" by beam search and "question/s<seed // 2>.number" by sampling, the same for two
    seeds, with "+turns" after turns.

    With --retrieve, the last reply is none of them. All are `looked_up`.
    """

    looked_up = Origin()

    def __init__(self, decoding: DecodingSettings, vocabulary: Vocabulary) -> None:
        self.decoding, self.vocabulary = decoding, vocabulary

    batch = 1
    follows_ratings = True

    def replies(self, questions: Sequence[Sequence[int]]) -> list[str]:
        return [replies[0].text for replies in self.candidates(questions)]

    def candidates(
        self,
        questions: Sequence[Sequence[int]],
        last_replies: Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[list[Reply]]:
        seeds = [self.decoding.seed] * len(questions) if seeds is None else seeds
        asked = zip(questions, seeds, strict=True)
        found = [[*map(self._reply, self._names(ids, seed), np.arange(0.5, 100))] for ids, seed in asked]
        if last_replies is None or not self.decoding.retrieved:
            return found
        return [[x for x in replies if x.text != last] for replies, last in zip(found, last_replies, strict=True)]

    def origin(self, question: Sequence[int], reply: str) -> Origin:
        return self.looked_up

    @functools.cached_property
    def automaton(self) -> BoundedAutomaton:
        return reply_automaton(self.decoding, self.vocabulary, 3000)

    @property
    def model(self) -> Model:
        return cast(Any, FakeRows(self))

    def _reply(self, text: str, score: float) -> Reply:
        return Reply(text, -score)

    def _names(self, ids: Sequence[int], seed: int) -> list[str]:
        text = self.vocabulary.text(question_of(ids, self.vocabulary))
        text = f"{text}\x1b[31m\x07\u202e" if RAW in text else text
        kind = f"s{seed // 2}." if self.decoding.samples else ""
        marks = sum(self.vocabulary.first_mark <= i < self.vocabulary.first_byte for i in ids)
        turns = f"+{marks - 1}" if marks > 1 else ""
        return [f"{text}/{kind}{number}{turns}" for number in range(1, self.decoding.hypotheses + 1)]


class FakeRows:
    """Generates the replies of a replier token by token. A state is the ids of each reply and the number generated."""

    def __init__(self, replier: FakeReplier) -> None:
        self._replier, self._vocabulary = replier, replier.vocabulary

    def encode(self, questions: Sequence[Sequence[int]]) -> list[tuple[list[int], int]]:
        replies = self._replier.replies(questions)
        return [([*self._vocabulary.ids(list(reply.replace(" ", SPACE))), EOS], 0) for reply in replies]

    def step(self, state: list[tuple[list[int], int]], last: Any) -> tuple[Any, list[tuple[list[int], int]]]:
        logits = np.full((len(state), len(self._vocabulary)), -9, np.float32)
        for row, (ids, number) in enumerate(state):
            logits[row, ids[number]] = 9
            if SLOW in self._vocabulary.text(ids):
                time.sleep(0.2)
        return logits, [(ids, min(number + 1, len(ids) - 1)) for ids, number in state]

    def take(self, states: Sequence[Any], rows: Any) -> list[tuple[list[int], int]]:
        joined = [row for state in states for row in state]
        return [joined[row] for row in rows]


def fake_model(
    turns: int = 0, name: str = "fake", attention: bool = True, made: list[str] | None = None
) -> LoadedModel:
    """A model whose default search is greedy. made: gets a line for each responder that was made."""
    settings = compose(Settings, tokenizer="char", max_length=3000, history=turns)
    vocabulary = Vocabulary([*"你好吗", SPACE, *(MARKS if turns else ()), *BYTES])

    def weights(question: Sequence[int], reply: Sequence[int]) -> Weights:
        return np.full((len(reply) + 1, len(question)), 1 / len(question), np.float32)

    def responder_of(decoding: DecodingSettings) -> TextResponder:
        if decoding.rerank:
            raise UserError("--rerank: this attempt did not learn both directions")
        if made is not None:
            made.append(str(decoding.beam_size or decoding.temperature))
        decoding = over_default(decoding, {"beam_size": 1})
        return TextResponder(
            cast(Any, FakeReplier(decoding, vocabulary)), vocabulary, settings, weights if attention else None
        )

    card = ModelCard(name, 1200, ("pairs.tsv",), 1000, 3.2, validated=True)
    return LoadedModel(Path(name), card, turns, responder_of)


def renamed(model: LoadedModel, step: int) -> LoadedModel:
    """The model of another checkpoint."""
    return dataclasses.replace(model, card=dataclasses.replace(model.card, step=step))


if __name__ == "__main__":
    from chatbot.chat.terminal.start import chat

    sys.exit(exit_code_of(lambda: chat(fake_model(turns=2), CHAT.parse(sys.argv[1:]))))
