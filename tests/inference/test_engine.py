"""The engine: replies as those of one question alone, whatever is asked at the same time and whatever fails."""

import dataclasses
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.errors import UserError
from chatbot.inference.engine import BusyError, Engine, RowLane, Waiting
from chatbot.inference.questions import Question, Usage
from chatbot.inference.responder import Responder, TensorFlowModel, rounded_up
from chatbot.inference.rows import RowBatch, token_log_prob, token_text
from chatbot.inference.text_responder import EMPTY_QUESTION_REPLY
from chatbot.model.saved import Trained, load_trained
from tests.export.untrained import QUESTIONS, write_attempt
from tests.inference.messages import Answer, Message, answer_of, asked, messages_of

GREEDY = DecodingSettings(beam_size=1, repetition_penalty=1.3, min_reply_length=2)
# The default search of a model that did not learn both directions.
SAMPLED = DecodingSettings(top_p=0.8, anti_lm=0.5, anti_lm_tokens=2)
MIXED: dict[str, Any] = {"temperature": 1.5, "top_k": 9, "typical": 0.9, "no_repeat_ngram": 1, "presence_penalty": 0.5}
STOPPED = DecodingSettings(ban=("我",), stop=("好", "天 "), seed=4, **MIXED)
SETTINGS = [GREEDY, SAMPLED, STOPPED]
LONG = DecodingSettings(beam_size=1, min_reply_length=4, no_repeat_ngram=1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A model with the defaults of the small presets: it copies, and n-grams are mixed in."""
    return load_trained(write_attempt(tmp_path_factory.mktemp("engine") / "tiny", copy=True, ngrams=3))


@pytest.fixture(scope="module")
def expected(trained: Trained) -> dict[tuple[str, DecodingSettings], str]:
    """The replies of chat.py to each question by each of the settings."""
    replies = {decoding: Responder(trained, decoding).replies(QUESTIONS) for decoding in SETTINGS}
    assert all(len(set(found)) > 1 for found in replies.values())
    return {(q, d): reply for d, found in replies.items() for q, reply in zip(QUESTIONS, found, strict=True)}


@pytest.fixture(scope="module")
def model(trained: Trained) -> TensorFlowModel:
    """The model for the engine."""
    return TensorFlowModel(trained.model)


@pytest.fixture(scope="module")
def engine(trained: Trained) -> Iterator[Engine]:
    """An engine whose own search samples one reply."""
    engine = Engine(Responder(trained, SAMPLED))
    yield engine
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("engine")]


@hypothesis.given(
    st.lists(
        st.tuples(st.sampled_from(QUESTIONS), st.sampled_from([None, *SETTINGS]), st.integers(1, 3), st.integers(0, 5)),
        min_size=1,
        max_size=7,
    ),
    st.data(),
)
@hypothesis.settings(max_examples=25)
def test_replies_are_those_of_chat_whatever_else_is_asked_and_when(
    trained: Trained,
    model: TensorFlowModel,
    expected: dict[tuple[str, DecodingSettings], str],
    wanted: list[tuple[str, DecodingSettings | None, int, int]],
    data: st.DataObject,
) -> None:
    """wanted: question, settings, replies, and the step at which it arrives. Some of those who ask leave."""
    lane = RowLane(Responder(trained, SAMPLED, model), Waiting(1))
    messages: list[list[Message]] = [[] for _ in wanted]
    questions = [Question(q, decoding=d, replies=n, streams=n < 3) for q, d, n, _ in wanted]
    everyone = [asked(question, own) for question, own in zip(questions, messages, strict=True)]
    leaves = data.draw(st.lists(st.integers(0, 8), min_size=len(wanted), max_size=len(wanted)))
    for step in range(30):
        for one, at in zip(everyone, leaves, strict=True):
            if at == step and at < 4:
                one.cancel()
        lane.step([one for one, (*_, at) in zip(everyone, wanted, strict=True) if at == step and not one.is_over])
    assert lane.batch.requests == []
    for (text, decoding, number, _), found, at in zip(wanted, messages, leaves, strict=True):
        if at < 4 and (not found or not isinstance(found[-1], Usage)):
            continue
        answer = Answer(found)
        assert answer.texts[0] == expected[text, decoding or SAMPLED]
        assert len(answer.texts) == number
    assert [graph.experimental_get_tracing_count() for graph in model.graphs] == [1] * 4


def test_replies_to_one_question_differ_and_the_first_is_the_single_one(engine: Engine) -> None:
    """As candidates: they do not depend on their number."""
    one, three, five = (answer_of(engine, Question("今天好", replies=n)).texts for n in (1, 3, 5))
    assert five[:3] == three
    assert three[:1] == one
    assert len(set(five)) > 1


def test_questions_of_many_threads(engine: Engine, expected: dict[tuple[str, DecodingSettings], str]) -> None:
    found: dict[tuple[str, DecodingSettings, int], str] = {}

    def ask(number: int) -> None:
        for question, decoding in expected:
            answer = answer_of(engine, Question(question, decoding=decoding, streams=number % 2 == 0))
            found[question, decoding, number] = answer.texts[0]

    threads = [threading.Thread(target=ask, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {(*key, number): reply for key, reply in expected.items() for number in range(6)}
    assert engine.waiting == 0


def test_max_tokens_cuts_a_reply_and_says_so(engine: Engine) -> None:
    whole = answer_of(engine, Question("你好吗", decoding=LONG, top_log_probs=2))
    assert whole.usage is not None
    length = whole.usage.reply_tokens
    assert length > 2
    cut = answer_of(engine, Question("你好吗", decoding=LONG, max_tokens=2, top_log_probs=2))
    assert (cut.reasons, cut.usage) == (["length"], Usage(whole.usage.question_tokens, 2))
    assert whole.texts[0].startswith(cut.texts[0])
    assert cut.tokens[0] == whole.tokens[0][:2]
    assert len(whole.tokens[0]) == length
    assert whole.pieces > 1


def test_log_probabilities_are_those_of_the_model_before_the_settings(engine: Engine) -> None:
    plain, changed = (
        answer_of(engine, Question("今天天", decoding=DecodingSettings(**flags), top_log_probs=3)).tokens[0]
        for flags in ({"beam_size": 1}, {"temperature": 0.1, "repetition_penalty": 9.0, "seed": 2})
    )
    for token in plain:
        values = [value for _, value in token.top]
        assert values == sorted(values, reverse=True)
        assert token.log_prob <= values[0] <= 0
        assert np.exp(values).sum() <= 1.001
    assert plain[0].top == changed[0].top


def test_tokens_of_a_stop_text_are_not_in_the_reply(engine: Engine) -> None:
    tokens = answer_of(engine, Question("你好吗", decoding=LONG, top_log_probs=0)).tokens[0]
    assert len(tokens) > 2
    stop = tokens[1].text
    stopped = dataclasses.replace(LONG, stop=(stop,))
    answer = answer_of(engine, Question("你好吗", decoding=stopped, top_log_probs=0))
    assert (answer.texts, answer.reasons) == ([tokens[0].text], ["stop"])
    assert [token.text for token in answer.tokens[0]] == answer.texts


def test_the_seed_and_the_stop_texts_of_a_question_are_those_of_its_settings(engine: Engine) -> None:
    """The texts that end a reply are added to those of the settings."""
    stop = answer_of(engine, Question("你好吗", decoding=LONG, top_log_probs=0)).tokens[0][1].text
    for seed in (1, 2):
        settings = dataclasses.replace(LONG, seed=seed, stop=(stop, "never"))
        question = Question("你好吗", decoding=dataclasses.replace(LONG, stop=("never",)), seed=seed, stop=(stop,))
        assert answer_of(engine, question) == answer_of(engine, Question("你好吗", decoding=settings))
    sampled = Question("今天好", decoding=SAMPLED, replies=3)
    first, other = (answer_of(engine, dataclasses.replace(sampled, seed=seed)).texts for seed in (1, 2))
    assert first != other


def test_text_without_visible_characters(engine: Engine) -> None:
    answer = answer_of(engine, Question(" \t", replies=2, decoding=GREEDY))
    assert (answer.texts, answer.usage) == ([EMPTY_QUESTION_REPLY] * 2, Usage(0, 0))


@pytest.mark.parametrize("beams", [1, 2])
def test_settings_that_the_model_does_not_admit_are_given_back(engine: Engine, beams: int) -> None:
    decoding = DecodingSettings(beam_size=beams, min_reply_length=99)
    (found,) = messages_of(engine, Question("你好", decoding=decoding))
    assert isinstance(found, UserError)
    assert answer_of(engine, Question("你好", decoding=GREEDY)).texts


def test_who_fails_to_receive_gets_nothing_more_and_others_do(engine: Engine) -> None:
    calls = []

    def receive(message: Message) -> None:
        calls.append(message)
        raise RuntimeError("gone")

    engine.submit(Question("你好吗", decoding=GREEDY), receive)
    answer_of(engine, Question("你好吗", decoding=GREEDY))
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["change", "advance"])
def test_failure_of_a_batch_is_given_to_its_questions_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(RowBatch, name, fail)
        (found,) = messages_of(engine, Question("你好", decoding=GREEDY))
    assert isinstance(found, MemoryError)
    assert answer_of(engine, Question("你好", decoding=GREEDY)).texts


class HeldResponder(Responder):
    """A responder that waits before it reads a question."""

    def __init__(self, trained: Trained, decoding: DecodingSettings) -> None:
        super().__init__(trained, decoding)
        self.reads, self.goes_on = threading.Event(), threading.Event()

    def source(self, text: str, history: Any) -> list[int]:
        """The ids of a question."""
        self.reads.set()
        assert self.goes_on.wait(60)
        return super().source(text, history)


def test_waiting_questions_are_bounded_and_answered_at_the_end(trained: Trained) -> None:
    """Those whose asker left are not counted, and closing answers the rest."""
    responder = HeldResponder(trained, GREEDY)
    engine = Engine(responder, most_waiting=3)
    messages: list[list[Message]] = [[] for _ in range(6)]
    engine.submit(Question("你好"), messages[0].append)
    assert responder.reads.wait(60)
    requests = [engine.submit(Question("你好"), own.append) for own in messages[1:3]]
    engine.submit(Question("你好"), messages[3].append)
    with pytest.raises(BusyError):
        engine.submit(Question("你好"), messages[4].append)
    assert engine.waiting == 3
    requests[0].cancel()
    engine.submit(Question("你好"), messages[4].append)
    assert engine.waiting == 3
    responder.goes_on.set()
    engine.close()
    assert [bool(own) for own in messages] == [True, False, True, True, True, False]
    assert all(isinstance(own[-1], Usage) for own in messages if own)
    with pytest.raises(BusyError):
        engine.submit(Question("你好"), messages[5].append)


def test_answered_and_cancelled_questions_are_forgotten(engine: Engine) -> None:
    class Asker(list[Message]):
        """A list that can be referred to weakly."""

    askers = [Asker() for _ in range(4)]
    references = [weakref.ref(asker) for asker in askers]
    for asker in askers:
        engine.submit(Question("你好吗", decoding=GREEDY), asker.append).cancel()
    answer_of(engine, Question("你好", decoding=GREEDY))
    answer_of(engine, Question("你好", decoding=GREEDY))
    del asker, askers
    gc.collect()
    assert not any(reference() is not None for reference in references)


def test_sizes_are_few() -> None:
    """TensorFlow and oneDNN keep memory for each size that they have seen."""
    sizes = [rounded_up(size) for size in range(1, 1025)]
    assert sizes[:9] == [1, 2, 3, 4, 6, 6, 8, 8, 12]
    assert all(size <= rounded <= 1.5 * size for size, rounded in enumerate(sizes, 1))
    assert len({*sizes}) == 20


def test_the_most_probable_tokens_are_those_of_a_whole_sort() -> None:
    """Of equal ones, the first."""
    vocabulary = Vocabulary(BYTES)
    rng = np.random.default_rng(1)
    for top in (1, 5, 20, len(vocabulary)):
        logits = rng.integers(0, 9, len(vocabulary)).astype(np.float32)
        expected = np.argsort(-logits, kind="stable")[:top].tolist()
        found = token_log_prob(vocabulary, 3, logits, top).top
        assert [text for text, _ in found] == [token_text(vocabulary, i) for i in expected]
    assert token_log_prob(vocabulary, 3, logits, 0).top == ()


def test_more_tokens_than_there_are_are_all_of_them(engine: Engine, trained: Trained) -> None:
    all_tokens, more = (
        Question("今天", decoding=DecodingSettings(top_k=number), seed=1) for number in (len(trained.vocabulary), 10**6)
    )
    assert answer_of(engine, more).texts == answer_of(engine, all_tokens).texts
