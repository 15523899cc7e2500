"""A chat model without weights, with replies that show the question and the search."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from chatbot.chat.loading import LoadedModel, ModelCard
from chatbot.config.chat import CHAT
from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.corpus.pieces import SPACE
from chatbot.corpus.vocabulary import BYTES, EOS, MARKS, Vocabulary, question_of
from chatbot.decoding.array_functions import Floats
from chatbot.decoding.interface import IdRows, IsWanted
from chatbot.decoding.reply_text import Origin, Reply
from chatbot.errors import UserError, exit_code_of
from chatbot.flags import compose
from chatbot.inference.engine import Engine
from chatbot.inference.replier import Replier, Source, reply_automaton
from chatbot.inference.request import Request
from chatbot.inference.row_batch import PendingReply
from chatbot.inference.text_responder import TextResponder

SLOW = "慢"  # the replies to a question with this character are slow
RAW = "坏"  # and with this one would control the terminal


class FakeReplier:
    """Replies "question/number" by beam search and "question/s<seed // 2>.number" by sampling, the same for two
    seeds, with "+turns" after turns.

    With --retrieve, the last reply is left out. The origin of all replies is `looked_up`.
    """

    looked_up = Origin()
    preferred_batch = 2
    follows_ratings = True
    generates = True

    def __init__(self, decoding: DecodingSettings, vocabulary: Vocabulary) -> None:
        self.decoding, self.vocabulary = decoding, vocabulary
        self.automaton = reply_automaton(decoding, vocabulary, 3000)

    def with_lookup(self, decoding: DecodingSettings) -> "FakeReplier":
        return FakeReplier(decoding, self.vocabulary)

    def candidates(
        self,
        sources: Sequence[Source],
        last_replies: Sequence[str],
        seeds: Sequence[int],
        is_wanted: IsWanted = lambda: True,
    ) -> list[list[Reply]]:
        asked = zip((source.ids for source in sources), seeds, strict=True)
        found = [[*map(self._reply, self._names(ids, seed), np.arange(0.5, 100))] for ids, seed in asked]
        if not self.decoding.retrieved:
            return found
        return [[x for x in replies if x.text != last] for replies, last in zip(found, last_replies, strict=True)]

    def origin(self, source: Source, reply: str) -> Origin:
        return self.looked_up

    def ids_before_stop(self, reply: Reply, stops: Sequence[str]) -> Sequence[int]:
        return reply.ids

    def _reply(self, text: str, score: float) -> Reply:
        return Reply(text, -score, origin=self.looked_up)

    def _names(self, ids: Sequence[int], seed: int) -> list[str]:
        text = self.vocabulary.text(question_of(ids, self.vocabulary))
        text = f"{text}\x1b[31m\x07\u202e" if RAW in text else text
        kind = f"s{seed // 2}." if self.decoding.samples else ""
        marks = sum(self.vocabulary.first_mark <= i < self.vocabulary.first_byte for i in ids)
        turns = f"+{marks - 1}" if marks > 1 else ""
        return [f"{text}/{kind}{number}{turns}" for number in range(1, self.decoding.hypotheses + 1)]


class FakeRows:
    """Repeats the ids of a question token by token. A state has the ids and the number of steps of each row."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def encode(self, questions: Sequence[Sequence[int]]) -> list[tuple[list[int], int]]:
        return [([*question, EOS], 0) for question in questions]

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

    def attention(self, questions: IdRows, replies: IdRows) -> list[Floats]:
        pairs = zip(questions, replies, strict=True)
        return [np.full((len(reply) + 1, len(question)), 1 / len(question), np.float32) for question, reply in pairs]


class FakeResponder(TextResponder):
    """A responder with the replies of `FakeReplier`."""

    def _make_replier(self, decoding: DecodingSettings) -> Replier:
        if decoding.rerank:
            raise UserError("--rerank: this attempt did not learn both directions")
        return cast(Any, FakeReplier(decoding, self.vocabulary))

    def begin(self, request: Request, source: Sequence[int], decoding: DecodingSettings) -> list[PendingReply]:
        seed = decoding.seed if request.question.seed is None else request.question.seed
        ((reply,),) = FakeReplier(decoding, self.vocabulary).candidates([Source(source, source)], [""], [seed])
        ids = self.vocabulary.ids(list(reply.text.replace(" ", SPACE)))
        return [dataclasses.replace(one, source=ids) for one in super().begin(request, source, decoding)]


def fake_model(
    turns: int = 0,
    name: str = "fake",
    attention: bool = True,
    decoding: DecodingSettings = DecodingSettings(),  # noqa: B008  # immutable
) -> LoadedModel:
    """Return a model with greedy default search."""
    shown = "luong" if attention else "none"
    settings = compose(Settings, tokenizer="char", max_length=3000, history=turns, attention=shown)
    vocabulary = Vocabulary([*"你好吗", SPACE, *(MARKS if turns else ()), *BYTES])
    default = {"beam_size": 1}
    responder = FakeResponder(cast(Any, FakeRows(vocabulary)), vocabulary, settings, decoding, default=default)
    card = ModelCard(name, 1200, ("pairs.tsv",), 1000, 3.2, validated=True)
    return LoadedModel(Path(name), card, turns, responder, Engine(responder))


def renamed(model: LoadedModel, step: int) -> LoadedModel:
    """Return a copy of the model with another step."""
    return dataclasses.replace(model, card=dataclasses.replace(model.card, step=step))


if __name__ == "__main__":
    from chatbot.chat.start import chat

    flags = CHAT.parse(sys.argv[1:])
    sys.exit(exit_code_of(lambda: chat(fake_model(turns=2, decoding=flags.decoding), flags)))
