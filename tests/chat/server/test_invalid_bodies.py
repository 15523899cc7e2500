"""The messages for bodies that are not as declared: which field, what was expected, and what was given."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from chatbot.chat.server.app import create_app
from chatbot.chat.server.invalid_bodies import problem_of
from tests.chat.server.fake_models import FakeEngine, fake_models

CHAT, COMPLETIONS, COMPARISONS = "/v1/chat/completions", "/v1/completions", "/chat/comparisons"
HELLO = {"messages": [{"role": "user", "content": "你好"}]}
DEEP = b'{"messages": [{"role": "user", "content": "x"}], "n": ' + b"[" * 900 + b"]" * 900 + b"}"
ROLES = '"system", "developer", "user", "assistant", "tool" or "function"'
COMPARED = {"question": "q", "histories": [[], []], "models": ["a", "a"], "better": "first"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("models")
    app = create_app(fake_models({"a": FakeEngine()}, folder), ratings=folder / "ratings.jsonl")
    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        (CHAT, b"", None, "The body: required, but missing"),
        (CHAT, [], None, "The body: expected an object, got a list"),
        (CHAT, b"null", None, "The body: expected an object, got null"),
        (CHAT, {}, "messages", "messages: required, but missing"),
        (CHAT, {"messages": []}, "messages", "messages: expected at least 1 item, got 0"),
        (CHAT, {"messages": {}}, "messages", "messages: expected a list, got an object"),
        (CHAT, {"messages": ["你"]}, "messages[0]", 'messages[0]: expected an object, got "你"'),
        (CHAT, {"messages": [{}]}, "messages[0].role", "messages[0].role: required, but missing"),
        (CHAT, {"messages": [{"role": "x"}]}, "messages[0].role", f'messages[0].role: expected {ROLES}, got "x"'),
        *[
            (CHAT, {"messages": [{"role": "user", "content": content}]}, f"messages[0].content{field}", message)
            for content, field, message in (
                (5, "", "messages[0].content: expected a text or a list, got 5"),
                (["x"], "[0]", 'messages[0].content[0]: expected an object, got "x"'),
                ([{"type": "a"}, {}], "[1].type", "messages[0].content[1].type: required, but missing"),
                ([{"type": "a", "text": 1}], "[0].text", "messages[0].content[0].text: expected a text, got 1"),
            )
        ],
        *[
            (CHAT, {**HELLO, name: value}, name, f"{name}: expected {message}")
            for name, value, message in (
                ("temperature", 5, "at most 2, got 5"),
                ("temperature", "hot", 'a number, got "hot"'),
                ("temperature", float("nan"), "a finite number, got NaN"),
                ("frequency_penalty", float("-inf"), "a finite number, got -Infinity"),
                ("top_p", -0.5, "at least 0, got -0.5"),
                ("top_k", 1.5, "a whole number, got 1.5"),
                ("n", 33, "at most 32, got 33"),
                ("n", True, "a whole number, got true"),
                ("n", 10**50, f"at most 32, got 1{'0' * 39}..."),
                ("stream", "yes", 'true or false, got "yes"'),
                ("stream_options", 5, "an object, got 5"),
                ("stop", 5, "a text or a list, got 5"),
                ("stop", "x" * 101, "at most 100 characters, got 101"),
                ("stop", ["x"] * 17, "at most 16 items, got 17"),
                ("model", ["a"], "a text, got a list"),
            )
        ],
        (CHAT, {**HELLO, "stop": ["a", 1]}, "stop[1]", "stop[1]: expected a text, got 1"),
        (
            CHAT,
            {**HELLO, "stop": ["a", "x" * 10**6]},
            "stop[1]",
            "stop[1]: expected at most 100 characters, got 1,000,000",
        ),
        (CHAT, DEEP, "n", "n: expected a whole number, got a list"),
        (CHAT, b'{"messages": "\\ud800"}', "messages", 'messages: expected a list, got "\ufffd"'),
        (COMPLETIONS, {"prompt": []}, "prompt", "prompt: expected at least 1 item, got 0"),
        (COMPLETIONS, {"prompt": ["x"] * 33}, "prompt", "prompt: expected at most 32 items, got 33"),
        (COMPLETIONS, {"prompt": None}, "prompt", "prompt: expected a text or a list, got null"),
        (COMPLETIONS, {"prompt": [1, 2]}, "prompt[0]", "prompt[0]: expected a text, got 1"),
        (COMPARISONS, {**COMPARED, "replies": ["x"]}, "replies", "replies: expected at least 2 items, got 1"),
        (
            *(COMPARISONS, {**COMPARED, "replies": ["x", "y" * 20_001]}, "replies[1]"),
            "replies[1]: expected at most 20,000 characters, got 20,001",
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_messages(client: TestClient, path: str, body: Any, param: str | None, message: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["message"], error["param"], error["code"]) == (message, param, "invalid_value")


def test_error_of_another_kind() -> None:
    error = {"type": "other", "loc": ("body", "n"), "msg": "Input is odd", "input": 1}
    assert problem_of([error]) == ("n", "n: expected another value, got 1")
