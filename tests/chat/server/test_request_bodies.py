"""Questions for the engine from the bodies of the three routes."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from chatbot.chat import clients
from chatbot.chat.loading import LoadedModel
from chatbot.chat.server import state
from chatbot.chat.server.app import create_app
from chatbot.config.decoding import DEFAULT_SEARCH, ONE_SAMPLE, DecodingSettings
from chatbot.inference.request import Question
from tests.chat.server.fake_models import FakeEngine, FakeResponder, fake_models, served

CHAT, COMPLETIONS, RESPONSES = WAYS = "/v1/chat/completions", "/v1/completions", "/v1/responses"


def settings(**search: Any) -> DecodingSettings:
    """Return the settings of a server with a banned word."""
    return DecodingSettings(ban=("词",), **search)


SAMPLED: dict[str, Any] = {"top_p": 0.8, "anti_lm": 0.1}
RERANKED: dict[str, Any] = {"candidates": 30, "top_p": 0.8, "rerank": 8.0}
LOOKED_UP: dict[str, Any] = {"beam_size": 5, "retrieve": "30", "min_score": 2.0, "fallback": "?"}
# Responders of models by their searches. Three have theirs from the command line, with all that it can say of a search.
MODELS = {
    "beam": FakeResponder(settings(), settings(**DEFAULT_SEARCH)),
    "greedy": FakeResponder(settings(), settings(beam_size=1)),
    "sample": FakeResponder(settings(), settings(**SAMPLED)),
    "looking up": FakeResponder(settings(), settings(**LOOKED_UP), retrieval=True),
    "best of many": FakeResponder(settings(), settings(**RERANKED)),
    "six beams": FakeResponder(settings(beam_size=6), settings(beam_size=6)),
    "chosen": FakeResponder(settings(**LOOKED_UP), settings(**LOOKED_UP), retrieval=True),
    "min_p": FakeResponder(settings(candidates=9, min_p=0.1), settings(candidates=9, min_p=0.1)),
    "any of many": FakeResponder(settings(candidates=3), settings(candidates=3)),
}
DECODING = yaml.safe_load(Path(__file__).with_name("decoding.yaml").read_text(encoding="utf-8"))
ENGINE, PEOPLE = FakeEngine(), itertools.count()
Ask = Callable[..., list[Question]]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Return a client of MODELS, which read two turns, and of models named by their number of turns."""

    def open_model(directory: Path) -> LoadedModel:
        responder, turns = MODELS.get(directory.name, MODELS["beam"]), 2
        if directory.name.isdecimal():
            turns = int(directory.name)
        return served(ENGINE, turns=turns, responder=responder, directory=str(directory))

    names = [*MODELS, *"01239"]
    models = fake_models(dict.fromkeys(names), tmp_path_factory.mktemp("models"), open_model=open_model)
    with TestClient(create_app(models)) as client:
        yield client


@pytest.fixture
def asked(client: TestClient) -> Ask:
    """Return a function that sends a request of a new person and returns the questions to the engine."""

    def ask(path: str = CHAT, text: Any = "你好", model: str = "beam", **fields: Any) -> list[Question]:
        question = {
            CHAT: {"messages": [{"role": "user", "content": text}]},
            COMPLETIONS: {"prompt": text},
            RESPONSES: {"input": text},
        }
        ENGINE.questions.clear()
        response = client.post(path, json={"model": model, "user": f"{next(PEOPLE)}", **question[path], **fields})
        assert response.status_code == 200, response.text
        return [*ENGINE.questions]

    return ask


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": None, "top_p": None, "stop": None, "seed": None, "n": None, "presence_penalty": 0},
        {"seed": 3},  # beam search has no random numbers
        {"stop": ["\n", ""]},  # a reply has one line
        {"min_p": 0, "top_k": -1, "frequency_penalty": 0.0, "repetition_penalty": 1, "anti_lm": 0},
        {"tools": [{"type": "function"}], "tool_choice": "auto", "metadata": {"chat_id": "1"}},
        {"logit_bias": {}, "response_format": {"type": "text"}, "modalities": ["text"], "reasoning_effort": "low"},
    ],
)
def test_model_uses_its_own_search_without_decoding_fields(asked: Ask, path: str, fields: dict[str, Any]) -> None:
    assert asked(path, **fields) == [Question("你好", streams=False)]
    (streamed,) = asked(path, stream=True, **fields)
    assert (streamed, streamed.client) == (Question("你好"), "address testclient")


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize(
    ("model", "fields", "expected"), [(model, *row) for model, rows in DECODING.items() for row in rows]
)
def test_decoding_fields(asked: Ask, path: str, model: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """Banned words stay banned, and the searches of model and request are not mixed."""
    (question,) = asked(path, model=model, **fields)
    assert question.decoding == settings(**expected)


@pytest.mark.parametrize("path", WAYS)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
        ({"min_score": -1, "fallback": "？"}, {"min_score": -1.0, "fallback": "？"}),
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_tokens": 10**30}, {"max_tokens": 2**31 - 1}),
        ({"max_tokens": -1}, {}),
    ],
)
def test_fields_besides_the_search(asked: Ask, path: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert asked(path, **fields) == [Question("你好", streams=False, **expected)]


@pytest.mark.parametrize(
    ("path", "fields", "expected"),
    [
        (CHAT, {"n": 3, "seed": 9, "logprobs": True, "top_logprobs": 2}, {"replies": 3, "seed": 9, "top_log_probs": 2}),
        (CHAT, {"logprobs": True}, {"top_log_probs": 0}),
        (CHAT, {"logprobs": False, "top_logprobs": 2}, {}),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, {"max_tokens": 6}),
        (COMPLETIONS, {"n": 2, "seed": 9, "logprobs": 1}, {"replies": 2, "seed": 9, "top_log_probs": 1}),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": -1}, {}),
        (RESPONSES, {"n": 2, "max_output_tokens": 4, "max_tokens": 5}, {"max_tokens": 4}),
        (RESPONSES, {"max_output_tokens": -1}, {}),
    ],
)
def test_fields_of_a_single_route(asked: Ask, path: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert asked(path, **fields) == [Question("你好", streams=False, **expected)]


@pytest.mark.parametrize(
    ("model", "n", "expected"),
    [
        *(("beam", 6, ONE_SAMPLE), ("beam", 5, None), ("greedy", 2, ONE_SAMPLE), ("greedy", 1, None)),
        *(("best of many", 31, {"top_p": 0.8}), ("sample", 6, None)),
    ],
)
def test_more_replies_than_the_models_own_search_finds_are_sampled(
    asked: Ask, model: str, n: int, expected: dict[str, Any] | None
) -> None:
    """Several replies are also sampled where one would be found by greedy search."""
    (question,) = asked(model=model, n=n)
    (changed,) = asked(n=n, frequency_penalty=0.5)
    assert question.replies == changed.replies == n
    search = {"beam_size": 1} if n == 1 else ONE_SAMPLE
    assert changed.decoding == settings(**search, frequency_penalty=0.5)
    assert question.decoding == (None if expected is None else settings(**expected))


def test_seeds(asked: Ask) -> None:
    """Without a seed, each sampled request gets a random one."""

    def seeds(**fields: Any) -> set[int | None]:
        return {question.seed for _ in range(4) for question in asked(**fields)}

    for sampled in ({"temperature": 1}, {"model": "sample"}, {"model": "best of many"}, {"n": 2}, {"n": 6}):
        assert len(seeds(**sampled)) == len(seeds(**sampled, seed=-1)) == 4
        assert seeds(**sampled, seed=3) == {3}
    assert seeds(temperature=1, seed=3.0) == {3}
    assert seeds(temperature=1, seed=-2) == {2**31 - 2}
    assert seeds(temperature=1, seed=2**31 + 5) == {5}
    assert seeds(beam_size=3) == seeds(seed=3) == {None}  # nothing is drawn
    assert asked(model="sample", seed=7) == [Question("你好", decoding=settings(**SAMPLED), seed=7, streams=False)]
    prompts = asked(COMPLETIONS, ["a"] * 8, temperature=1)
    assert len({question.seed for question in prompts}) > 1  # equal prompts have different replies


def test_requests_with_the_same_search_share_its_settings(asked: Ask) -> None:
    (first,), (second,) = asked(temperature=0.5, seed=1, stop="a"), asked(temperature=0.5, seed=2, stop="b")
    assert first.decoding is second.decoding is not None


def test_repeated_questions_are_counted(asked: Ask) -> None:
    """Each person, model and conversation is counted separately, streamed or not."""
    last: dict[str, Any] = {"text": "again", "user": "u"}
    for number, stream in enumerate((False, True, True, False)):
        assert [question.repeats for question in asked(stream=stream, **last)] == [number]
    assert [asked(**last, **fields)[0].repeats for fields in ({"seed": -1}, {"seed": 1}, {"n": 2})] == [4, 0, 0]
    assert asked(**{**last, "user": {"id": "u", "name": "x"}})[0].repeats == 7
    for fields in ({"user": "v"}, {"user": {"id": 1}}, {"text": "other"}, {"model": "sample"}):
        assert asked(**{**last, **fields})[0].repeats == 0
    for _ in range(2):
        assert [question.repeats for question in asked(COMPLETIONS, ["p", "q"])] == [0, 0]


def test_repeats_expire(asked: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e6
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now))
    for seconds, repeats in ((0, 0), (1, 1), (state.REPEAT_SECONDS - 1, 2), (state.REPEAT_SECONDS, 0), (1, 1)):
        now += seconds
        assert asked(text="long ago", user="u")[0].repeats == repeats


Turn = tuple[str, Any]
TURNS: tuple[Turn, ...] = (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"))
MIXED_PARTS = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]  # as some clients send them
PARTS = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "b"}]
INPUT_PARTS = [{"type": "input_text", "text": "a"}, {"type": "input_image"}, {"type": "output_text", "text": "b"}]
COUNTED: tuple[Turn, ...] = tuple(("assistant" if i % 2 else "user", str(i)) for i in range(1001))


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("turns", "messages", "read", "last_reply"),
    [
        (0, TURNS, "e", "d"),
        (2, TURNS, "c d e", "d"),
        (9, TURNS, "a b c d e", "d"),
        (3, COUNTED, "997 998 999 1000", "999"),
        (9, (("system", "s"), ("developer", "s"), ("user", "a"), ("assistant", None), ("user", "c")), "a  c", ""),
        (9, (("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"), ("user", "e")), "a\nb c d\ne", "c"),
        (0, TURNS[:2], "a", ""),
        (9, (("system", "s"),), "", ""),
        (9, (("user", "x" * 1990), ("user", "y" * 9), ("user", "z")), "y" * 9 + "\nz", ""),
        (1, (("user", "x" * 5000), ("assistant", "y" * 5000), ("user", "z" * 5000)),
         "y" * 2000 + " " + "z" * 2000, "y" * 2000),
    ],
)  # fmt: skip
def test_turns_are_the_last_messages_of_users_and_assistant(
    asked: Ask, client: TestClient, path: str, turns: int, messages: tuple[Turn, ...], read: str, last_reply: str
) -> None:
    """The previous reply is known even if the model does not read it."""
    field = {CHAT: "messages", RESPONSES: "input"}[path]
    body = {"model": str(turns), field: [{"role": role, "content": text} for role, text in messages]}
    assert client.post(path, json=body).status_code == 200
    question = ENGINE.questions[-1]
    assert " ".join((*question.history, question.text)) == read
    assert question.last_reply == last_reply


def test_text_parts_of_a_message_are_joined(asked: Ask, client: TestClient) -> None:
    """Other items of /v1/responses and the results of tools are left out."""
    assert asked(text=PARTS)[0].text == "a\nb"
    tool = {"role": "tool", "content": "t"}
    for path, field, parts, other in (
        (CHAT, "messages", PARTS, tool),
        (CHAT, "messages", MIXED_PARTS, tool),
        (RESPONSES, "input", MIXED_PARTS, tool | {"role": "system"}),
        (RESPONSES, "input", INPUT_PARTS, {"type": "function_call_output", "call_id": "1", "output": "x"}),
    ):
        assert client.post(path, json={field: [{"role": "user", "content": parts}, other]}).status_code == 200
        assert ENGINE.questions[-1].text == "a\nb"
        assert client.post(path, json={field: [other]}).status_code == 200
        assert ENGINE.questions[-1].text == ""


def test_truncated_questions_are_marked(asked: Ask) -> None:
    """Each prompt is a separate question."""
    for path in WAYS:
        assert [asked(path, "x" * n)[0].is_cut for n in (2000, 2001)] == [False, True]
    parts = [[{"type": "text", "text": "x" * n}] * 2 for n in (999, 1000)]
    assert [asked(text=part)[0].is_cut for part in parts] == [False, True]
    common: dict[str, Any] = {"replies": 2, "max_tokens": 4, "seed": 9, "streams": False}
    expected = [Question("a", **common), Question("b" * 2000, is_cut=True, **common)]
    assert asked(COMPLETIONS, ["a", "b" * 2001], max_tokens=4, seed=9, n=2) == expected
