"""Replies that are generated together are those of the oracle, whatever else is asked, leaves or fails meanwhile."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BYTES, EOS, Vocabulary
from chatbot.errors import UserError
from chatbot.inference.engine import StreamWorker
from chatbot.inference.request import Question, Request, Usage
from chatbot.inference.request_queue import RequestQueue
from chatbot.inference.row_batch import token_log_prob, token_text
from chatbot.inference.tensorflow_model import round_up_size
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from tests.inference.messages import Answer, Message, answer_of, answers_of, asked, reply_of
from tests.inference.test_replier import rows_of
from tests.oracle import Ids, Oracle, before_stop
from tests.tiny_models import ARCHITECTURES, LENGTH, VOCABULARY, Table, responder_of, tiny

QUESTIONS = ["a", "你好b", "ab 好", "aaaaaaaaa", "b"]
GREEDY = DecodingSettings(beam_size=1, repetition_penalty=1.3, min_reply_length=2)
SAMPLED = DecodingSettings(top_p=0.8, anti_lm=0.5, anti_lm_tokens=2)
MIXED: dict[str, Any] = {"temperature": 1.5, "top_k": 9, "min_p": 0.1, "no_repeat_ngram": 1, "presence_penalty": 0.5}
STOPPED = DecodingSettings(ban=("你",), stop=("b", "好 "), seed=4, **MIXED)
LATER = DecodingSettings(top_k=4, anti_lm=0.9, anti_lm_tokens=4)
SETTINGS = [GREEDY, SAMPLED, STOPPED, LATER]
LONG = DecodingSettings(beam_size=1, min_reply_length=4, no_repeat_ngram=1)


def expected_of(oracle: Oracle, source: Ids, decoding: DecodingSettings, number: int) -> list[str]:
    """The texts of so many replies to a question."""
    several = dataclasses.replace(decoding, candidates=number) if decoding.samples else decoding
    found = [ids for ids, _ in oracle.hypotheses(several, source)] * (1 if decoding.samples else number)
    texts = [VOCABULARY.text(i for i in ids if i != EOS) for ids in found]
    return [before_stop(text, decoding.stop) for text in texts]


class BreakingTable(Table):
    """A table that can be out of memory."""

    broken = ""

    def encode(self, questions: Sequence[Ids]) -> dict[str, Any]:
        self._check("encode")
        return super().encode(questions)

    def step(self, state: dict[str, Any], last: Any) -> tuple[Any, dict[str, Any]]:
        self._check("step")
        return super().step(state, last)

    def _check(self, name: str) -> None:
        if self.broken == name:
            self.broken = ""
            raise MemoryError(name)


TABLE = BreakingTable()
RESPONDER = TABLE.responder(SAMPLED)


@functools.cache
def of_table(text: str, decoding: DecodingSettings) -> list[str]:
    return expected_of(TABLE.oracle(), RESPONDER.source(text, ()).ids, decoding, 3)


class Questions(RuleBasedStateMachine):
    """Questions arrive, leave and meet failures, between any two tokens of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.worker = StreamWorker(RESPONDER, RequestQueue(1))
        self.requests: list[tuple[Request, list[Message]]] = []
        self.arriving: list[Request] = []
        self.left: dict[Request, int] = {}  # the number of messages that each had when it left

    @rule(
        text=st.sampled_from(QUESTIONS),
        decoding=st.sampled_from([None, *SETTINGS]),
        replies=st.integers(1, 3),
        streams=st.booleans(),
    )
    def ask(self, text: str, decoding: DecodingSettings | None, replies: int, streams: bool) -> None:
        messages: list[Message] = []
        request = asked(Question(text, decoding=decoding, replies=replies, streams=streams), messages)
        self.requests.append((request, messages))
        self.arriving.append(request)

    @rule(steps=st.integers(1, 4))
    def generate(self, steps: int) -> None:
        for _ in range(steps):
            self.worker.step([request for request in self.arriving if not request.is_over])
            self.arriving = []

    @rule(number=st.integers(0, 20))
    def leave(self, number: int) -> None:
        if number < len(self.requests) and not self.requests[number][0].is_over:
            request, messages = self.requests[number]
            request.cancel()
            self.left[request] = len(messages)

    @rule(name=st.sampled_from(["encode", "step"]))
    def fail(self, name: str) -> None:
        """Those who wait get the error, if there is one, and the next questions are answered."""
        waiting = [messages for request, messages in self.requests if not request.is_over]
        TABLE.broken = name
        self.generate(1)
        if not TABLE.broken:
            assert all(isinstance(messages[-1], MemoryError) for messages in waiting)
            assert self.worker.batch.requests == []
        TABLE.broken = ""

    def teardown(self) -> None:
        self.generate(LENGTH + 1)
        assert self.worker.batch.unfinished == 0
        assert self.worker.batch.requests == []
        for request, messages in self.requests:
            question = request.question
            if request in self.left:
                assert len(messages) == self.left[request]
            elif not isinstance(messages[-1], MemoryError):
                answer = Answer(messages)
                assert answer.texts == of_table(question.text, question.decoding or SAMPLED)[: question.replies]
                assert answer.tokens == [[]] * question.replies  # which were not asked for
                assert question.streams or answer.pieces == question.replies


Questions.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestQuestions = Questions.TestCase


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_questions_that_join_a_model_later_get_the_replies_of_the_oracle(architecture: str) -> None:
    model = tiny(architecture)
    responder = responder_of(model.trained, SAMPLED, rows_of(architecture))
    worker, wanted = StreamWorker(responder, RequestQueue(1)), [*zip(QUESTIONS, [*SETTINGS, SAMPLED], strict=True)]
    messages: list[list[Message]] = [[] for _ in wanted]
    for step in range(LENGTH + 6):
        joining = [*zip(wanted, messages, strict=True)][2 * step : 2 * step + 2]
        worker.step([asked(Question(text, decoding=decoding, replies=2), own) for (text, decoding), own in joining])
    for (text, decoding), own in zip(wanted, messages, strict=True):
        assert Answer(own).texts == expected_of(model.oracle, responder.source(text, ()).ids, decoding, 2)
    assert reply_of(responder, QUESTIONS[-1]) == Answer(messages[-1]).texts[0]
    assert [graph.experimental_get_tracing_count() for graph in rows_of(architecture).graphs] == [1] * 4


def test_the_distribution_without_the_question_is_computed_only_if_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, original = [], TABLE.step

    def step(state: Any, last: Any) -> Any:
        sizes.append(len(last))
        return original(state, last)

    monkeypatch.setattr(TABLE, "step", step)
    worker = StreamWorker(RESPONDER, RequestQueue(1))
    for decoding in (LONG, dataclasses.replace(SAMPLED, min_reply_length=4)):
        worker.step([asked(Question("a", decoding=decoding), [])])
    assert sizes == [1, 3]


def test_log_probabilities_are_those_of_the_model_before_the_settings() -> None:
    """Of each token, and the most probable ones in their order, the first of equal ones first; max_tokens cuts both."""
    decoding = dataclasses.replace(LONG, repetition_penalty=9.0)
    question = Question("好b", decoding=decoding, top_log_probs=3)
    text = "你龘 b"
    spelled = "".join(token_text(VOCABULARY, i) for i in VOCABULARY.ids(RESPONDER._tokens(text)))
    assert spelled.encode(errors="surrogateescape").decode() == text  # each byte is a token with its own byte
    answer, source = answer_of(RESPONDER, question), RESPONDER.source("好b", ()).ids
    ids, _ = TABLE.oracle().hypotheses(decoding, source)[0]
    for place, token in enumerate(answer.tokens[0]):
        log_probs = TABLE.oracle().distribution(source, ids[:place])
        best = np.argsort(-log_probs, kind="stable")[:3].tolist()
        assert token.text == token_text(VOCABULARY, ids[place])
        assert [text for text, _ in token.top] == [token_text(VOCABULARY, i) for i in best]
        found = [token.log_prob, *(value for _, value in token.top)]
        np.testing.assert_allclose(found, log_probs[[ids[place], *best]], rtol=1e-4, atol=1e-4)
    assert answer.usage == Usage(len(source), len(answer.tokens[0]))
    assert answer.pieces > 1
    cut = answer_of(RESPONDER, dataclasses.replace(question, max_tokens=2))
    assert (cut.reasons, cut.usage, cut.tokens[0]) == (["length"], Usage(len(source), 2), answer.tokens[0][:2])
    assert answer.texts[0].startswith(cut.texts[0])
    vocabulary, rng = Vocabulary(BYTES), np.random.default_rng(1)
    for top in (0, 1, 5, 20, len(vocabulary)):
        logits = rng.integers(0, 9, len(vocabulary)).astype(np.float32)
        expected = np.argsort(-logits, kind="stable")[:top].tolist()
        texts = [text for text, _ in token_log_prob(vocabulary, 3, logits, top).top]
        assert texts == [token_text(vocabulary, i) for i in expected]


def test_seed_and_stop_texts_of_a_question_extend_its_settings() -> None:
    """The tokens of a stop text are not in the reply."""
    tokens = answer_of(RESPONDER, Question("你好", decoding=LONG, top_log_probs=0)).tokens[0]
    stop = tokens[1].text
    for seed in (1, 2):
        whole = Question("你好", decoding=dataclasses.replace(LONG, seed=seed, stop=(stop, "never")), top_log_probs=0)
        answer = answer_of(RESPONDER, whole)
        assert (answer.texts, answer.reasons) == ([tokens[0].text.rstrip()], ["stop"])
        assert answer.tokens[0] == tokens[:1]
        decoding = dataclasses.replace(LONG, stop=("never",))
        assert answer == answer_of(RESPONDER, dataclasses.replace(whole, decoding=decoding, seed=seed, stop=(stop,)))
    seeds = [Question("好", replies=3, seed=seed) for seed in (1, 2)]
    assert answer_of(RESPONDER, seeds[0]).texts != answer_of(RESPONDER, seeds[1]).texts


@pytest.mark.parametrize("flags", [{"beam_size": 1}, {"beam_size": 2}])
def test_unsupported_settings_of_a_question_are_its_error(flags: Any) -> None:
    """Those of other questions that arrive together are answered. More tokens than there are are all of them."""
    refused = DecodingSettings(**flags, min_reply_length=99)
    other = [Question("a", decoding=DecodingSettings(top_k=number)) for number in (len(VOCABULARY), 10**6)]
    (found,), *answered = answers_of(RESPONDER, Question("a", decoding=refused), *other, Question(" \t", replies=2))
    assert isinstance(found, UserError)
    first, second, blank = map(Answer, answered)
    assert first.texts == second.texts
    assert (blank.texts, blank.usage) == ([EMPTY_QUESTION_REPLY] * 2, Usage(0, 0))


def test_banned_words_of_a_question_are_cleaned_as_the_training_pairs_were() -> None:
    cleaned, other = [DecodingSettings(beam_size=1, ban=(word,)) for word in ("b", " ｂ")]
    responder = TABLE.responder(SAMPLED, clean=("nfkc",))
    texts = [answer_of(responder, Question("ab", decoding=decoding)).texts for decoding in (cleaned, other)]
    assert texts[0] == texts[1] != answer_of(responder, Question("ab", decoding=DecodingSettings(beam_size=1))).texts


def test_sizes_are_few() -> None:
    """TensorFlow and oneDNN keep memory for each size that they have seen."""
    sizes = [round_up_size(size) for size in range(1, 1025)]
    assert sizes[:9] == [1, 2, 3, 4, 6, 6, 8, 8, 12]
    assert all(size <= rounded <= 1.5 * size for size, rounded in enumerate(sizes, 1))
    assert len({*sizes}) == 20
