"""From the body of a request to questions to the engine."""

from typing import Any

import pytest
from pydantic import ValidationError

from chatbot.chat.server.errors import ApiError
from chatbot.chat.server.questions import ChatRequest, CompletionRequest, Searches, one_hypothesis, questions_of
from chatbot.config.decoding import DEFAULT_SEARCH, ONE_SAMPLE, DecodingSettings
from chatbot.inference.questions import Question

GIVEN = DecodingSettings(ban=("词",))
SAMPLED = {"top_p": 0.8, "anti_lm": 0.1}
RERANKED = {"candidates": 30, "top_p": 0.8, "rerank": 8.0}
BEAM = Searches(GIVEN, DecodingSettings(ban=("词",), **DEFAULT_SEARCH))  # type: ignore[arg-type]
SAMPLE = Searches(GIVEN, DecodingSettings(ban=("词",), **SAMPLED))  # type: ignore[arg-type]
LOOKING_UP = Searches(
    GIVEN, DecodingSettings(ban=("词",), beam_size=5, retrieve="30", min_score=2.0, fallback="?"), looks_up=True
)
BEST_OF_MANY = Searches(GIVEN, DecodingSettings(ban=("词",), **RERANKED))  # type: ignore[arg-type]


def asked(searches: Searches = BEAM, turns: int = 2, text: Any = "你好", **fields: Any) -> Question:
    """The question of a chat of one message."""
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": text}], **fields})
    return questions_of(body, searches, turns)[0]


def turns_of(turns: int, *messages: tuple[str, Any]) -> tuple[str, ...]:
    """The turns that are read of a chat, the question last."""
    body = ChatRequest.model_validate({"messages": [{"role": role, "content": text} for role, text in messages]})
    (question,) = questions_of(body, BEAM, turns)
    return (*question.history, question.text)


CHAT = (("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e"))


@pytest.mark.parametrize(
    ("turns", "messages", "read"),
    [
        (0, CHAT, ("e",)),
        (2, CHAT, ("c", "d", "e")),
        (9, CHAT, ("a", "b", "c", "d", "e")),
        (9, (("system", "s"), ("developer", "s"), ("user", "a"), ("tool", "t"), ("assistant", None), ("user", "c")),
         ("a", "", "c")),
        (9, (("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"), ("user", "e")), ("a\nb", "c", "d\ne")),
        (9, (("user", "a"), ("assistant", "b")), ("a",)),
        (9, (("assistant", "hello"), ("user", "a")), ("hello", "a")),
        (9, (("system", "s"),), ("",)),
        (9, (("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}},
                       {"type": "text", "text": "b"}]),), ("a\nb",)),
        (9, (("user", "x" * 1990), ("user", "y" * 9), ("user", "z")), ("y" * 9 + "\nz",)),
        (1, (("user", "x" * 5000), ("assistant", "y" * 5000), ("user", "z" * 5000)), ("y" * 2000, "z" * 2000)),
    ],
)  # fmt: skip
def test_turns_are_the_last_messages_of_users_and_assistant(
    turns: int, messages: tuple[tuple[str, Any], ...], read: tuple[str, ...]
) -> None:
    assert turns_of(turns, *messages) == read


@pytest.mark.parametrize(
    ("turns", "messages", "last_reply"),
    [(0, CHAT, "d"), (2, CHAT, "d"), (0, CHAT[:1], ""), (0, (("user", "a"), *CHAT[3:]), "d"), (0, CHAT[:2], "")],
)
def test_the_last_reply_is_known_whatever_the_model_reads(
    turns: int, messages: tuple[tuple[str, Any], ...], last_reply: str
) -> None:
    body = ChatRequest.model_validate({"messages": [{"role": role, "content": text} for role, text in messages]})
    (question,) = questions_of(body, BEAM, turns)
    assert (question.last_reply, len(question.history)) == (last_reply, min(turns, len(messages) - 1))


def test_a_thousand_turns_are_cut() -> None:
    messages = [("assistant" if i % 2 else "user", str(i)) for i in range(1001)]
    assert turns_of(3, *messages) == ("997", "998", "999", "1000")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": None, "top_p": None, "stop": None, "seed": None, "n": None, "presence_penalty": 0},
        {"seed": 3},  # beam search has no random numbers
        {"stop": ["\n", ""]},  # a reply has one line
        {"min_p": 0, "top_k": -1, "frequency_penalty": 0.0, "repetition_penalty": 1, "anti_lm": 0},
        {"tools": [{"type": "function"}], "tool_choice": "auto", "user": {"name": "u"}, "metadata": {"chat_id": "1"}},
        {"logit_bias": {}, "response_format": {"type": "text"}, "modalities": ["text"], "reasoning_effort": "low"},
    ],
)
def test_without_decoding_fields_the_model_searches_as_it_does_elsewhere(fields: dict[str, Any]) -> None:
    assert asked(**fields) == Question("你好", streams=False)
    assert asked(stream=True, **fields) == Question("你好")


@pytest.mark.parametrize(
    ("searches", "fields", "expected"),
    [
        (BEAM, {"temperature": 0}, {"beam_size": 1}),
        (SAMPLE, {"temperature": 0.001}, {"beam_size": 1}),
        (SAMPLE, {"top_p": 0}, {"beam_size": 1}),
        (BEAM, {"temperature": 0.7, "top_p": 0.9, "min_p": 0.1, "top_k": 5, "seed": 3, "stop": "x"},
         {"temperature": 0.7, "top_p": 0.9, "min_p": 0.1, "top_k": 5}),
        (BEAM, {"anti_lm": 0.5, "repetition_penalty": 1.2, "stop": ["x", "y"]},
         {"beam_size": 1, "anti_lm": 0.5, "repetition_penalty": 1.2}),
        (LOOKING_UP, {"beam_size": 3}, {"beam_size": 3}),
        (LOOKING_UP, {"beam_size": 3, "temperature": 0, "retrieve": 9}, {"beam_size": 3, "retrieve": "9"}),
        (LOOKING_UP, {"retrieve": 0}, {"beam_size": 5, "retrieve": "none", "min_score": 2.0, "fallback": "?"}),
        (LOOKING_UP, {"retrieve": 0, "top_p": 0.5}, {"top_p": 0.5, "retrieve": "none"}),
        (BEST_OF_MANY, {"retrieve": 0}, {**RERANKED, "retrieve": "none"}),
        (SAMPLE, {"seed": 7}, SAMPLED),
        (BEST_OF_MANY, {"frequency_penalty": 0.5}, {"top_p": 0.8, "frequency_penalty": 0.5}),
        (BEAM, {"temperature": 1, "seed": 1, "presence_penalty": 2, "frequency_penalty": -2},
         {"temperature": 1.0, "presence_penalty": 2.0, "frequency_penalty": -2.0}),
    ],
)  # fmt: skip
def test_decoding_fields(searches: Searches, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """What the command line forbids stays forbidden; the search of a model is not mixed with that of a request."""
    question = asked(searches, **fields)
    assert question.decoding == DecodingSettings(ban=("词",), **expected)
    assert (question.seed, question.stop) == (fields.get("seed", question.seed), tuple(fields.get("stop", ())))


@pytest.mark.parametrize(
    ("searches", "n", "expected"),
    [(BEAM, 6, ONE_SAMPLE), (BEAM, 5, None), (BEST_OF_MANY, 31, {"top_p": 0.8}), (SAMPLE, 6, None)],
)
def test_more_replies_than_the_models_own_search_finds_are_sampled(
    searches: Searches, n: int, expected: dict[str, Any] | None
) -> None:
    question = asked(searches, n=n)
    assert question.replies == n
    assert question.decoding == (None if expected is None else DecodingSettings(ban=("词",), **expected))


def test_seeds() -> None:
    """Without one, each request has its own if it asks for sampling; otherwise that of the command line."""
    assert len({asked(temperature=1.0).seed for _ in range(8)}) > 1
    assert len({asked(temperature=1.0, seed=-1).seed for _ in range(8)}) > 1
    assert asked(SAMPLE, seed=-1).decoding is None
    assert asked(temperature=1.0, seed=-2).seed == 2**31 - 2
    assert asked(SAMPLE, frequency_penalty=1).seed is None
    assert asked(BEAM, beam_size=3).seed is None
    body = CompletionRequest.model_validate({"prompt": ["a"] * 8, "temperature": 1})
    assert len({question.seed for question in questions_of(body, BEAM, 2)}) > 1  # equal prompts have different replies


@pytest.mark.parametrize(
    ("searches", "fields", "param"),
    [
        (BEAM, {"beam_size": 3, "top_p": 0.9}, "beam_size"),
        (BEAM, {"retrieve": 3}, "retrieve"),
        (LOOKING_UP, {"retrieve": 3, "temperature": 0.5}, "retrieve"),
        (LOOKING_UP, {"beam_size": 3, "presence_penalty": 1}, "presence_penalty"),
        (LOOKING_UP, {"retrieve": 3, "anti_lm": 1}, "anti_lm"),
        (LOOKING_UP, {"temperature": 1, "min_score": 1}, "min_score"),
        (SAMPLE, {"min_score": 1}, "min_score"),
        (BEAM, {"min_score": 1, "fallback": "a\nb"}, "fallback"),
        (BEAM, {"min_score": 1, "fallback": " "}, "fallback"),
    ],
)
def test_fields_that_exclude_each_other_are_named(searches: Searches, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(searches, **fields)
    assert (caught.value.status_code, caught.value.param) == (400, param)
    assert caught.value.detail.startswith(f"{param}: ")
    assert "--" not in caught.value.detail


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ChatRequest, {"response_format": {"type": "json_object"}}),
        (ChatRequest, {"tool_choice": "required"}),
        (ChatRequest, {"function_call": {"name": "f"}}),
        (ChatRequest, {"modalities": ["text", "audio"]}),
        (ChatRequest, {"logit_bias": {"50256": -100}}),
        (CompletionRequest, {"logit_bias": {"50256": -100}}),
        (CompletionRequest, {"best_of": 2}),
        (CompletionRequest, {"echo": True}),
        (CompletionRequest, {"suffix": "x"}),
    ],
)
def test_what_no_model_can_do_is_refused(kind: type[ChatRequest | CompletionRequest], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"messages": [{"role": "user", "content": "a"}], "prompt": "a", **fields})
    assert {error["loc"][0] for error in caught.value.errors()} == {*fields}


def test_repeats_count_where_no_field_asks_for_the_same_reply() -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}
    fields: list[dict[str, Any]] = [{}, {"seed": -1}, {"seed": 1}, {"n": 2}]
    found = [questions_of(ChatRequest.model_validate({**body, **x}), BEAM, 2, repeats=3)[0].repeats for x in fields]
    assert found == [3, 3, 0, 0]


@pytest.mark.parametrize(
    ("user", "person"), [("u", "u"), ({"id": "u", "name": "x"}, "u"), ({"id": 1}, ""), (None, ""), ([["u"]], "")]
)
def test_the_name_of_who_asks(user: Any, person: str) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "user": user}
    assert ChatRequest.model_validate(body).person == person


def test_questions_longer_than_what_is_read_are_marked() -> None:
    assert [asked(text="x" * n).is_cut for n in (2000, 2001)] == [False, True]
    assert [asked(text=[{"type": "text", "text": "x" * n}] * 2).is_cut for n in (999, 1000)] == [False, True]
    body = CompletionRequest.model_validate({"prompt": ["x" * 2000, "x" * 2001]})
    assert [question.is_cut for question in questions_of(body, BEAM, 2)] == [False, True]


def test_requests_with_the_same_search_share_its_settings() -> None:
    first, second = asked(temperature=0.5, seed=1, stop="a"), asked(temperature=0.5, seed=2, stop="b")
    assert first.decoding is second.decoding is not None


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"beam_size": 5, "coverage_penalty": 0.1, "diverse_groups": 5}, {"beam_size": 1}),
        ({"candidates": 3}, {"temperature": 1.0}),
        ({"candidates": 3, "typical": 0.9}, {"typical": 0.9}),
    ],
)
def test_a_search_for_one_hypothesis(own: dict[str, Any], expected: dict[str, Any]) -> None:
    assert one_hypothesis(DecodingSettings(**own)) == DecodingSettings(**expected)


def test_fields_of_the_replies() -> None:
    question = asked(n=3, max_tokens=5, max_completion_tokens=6, logprobs=True, top_logprobs=2)
    assert (question.replies, question.max_tokens, question.top_log_probs) == (3, 6, 2)
    assert asked(max_tokens=10**30).max_tokens == 2**31 - 1
    assert asked(logprobs=True).top_log_probs == 0
    assert asked(logprobs=False, top_logprobs=2).top_log_probs is None
    body = CompletionRequest.model_validate({"prompt": ["a", "b"], "logprobs": 1, "max_tokens": 4, "n": 2})
    questions = [Question(t, replies=2, max_tokens=4, top_log_probs=1, streams=False) for t in "ab"]
    assert questions_of(body, BEAM, 2) == questions
