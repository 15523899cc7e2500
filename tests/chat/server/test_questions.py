"""From the body of a request to questions to the engine."""

from typing import Any

import pytest

from chatbot.chat.server.questions import ChatRequest, CompletionRequest, Searches, one_hypothesis, questions_of
from chatbot.config.decoding import DEFAULT_SEARCH, ONE_SAMPLE, DecodingSettings
from chatbot.inference.questions import Question

GIVEN = DecodingSettings(ban=("词",))
SAMPLED = {"top_p": 0.8, "anti_lm": 0.1}
RERANKED = {"candidates": 30, "top_p": 0.8, "rerank": 8.0}
BEAM = Searches(GIVEN, DecodingSettings(ban=("词",), **DEFAULT_SEARCH))  # type: ignore[arg-type]
SAMPLE = Searches(GIVEN, DecodingSettings(ban=("词",), **SAMPLED))  # type: ignore[arg-type]
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
        {"min_p": 0, "top_k": -1, "frequency_penalty": 0.0},
        {"tools": [], "user": "u", "metadata": {"chat_id": "1"}, "logit_bias": None, "response_format": {"type": "x"}},
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
        (BEAM, {"stop": ["x", "y"]}, {"beam_size": 1}),
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
    body = CompletionRequest.model_validate({"prompt": ["a"] * 8, "temperature": 1})
    assert len({question.seed for question in questions_of(body, BEAM, 2)}) > 1  # equal prompts have different replies


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
