"""The messages for bodies that are not as declared: which field, and what was expected."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from chatbot.chat.server.app import create_app
from tests.chat.server.fake_models import FakeEngine, fake_models

CHAT, COMPLETIONS, COMPARISONS = "/v1/chat/completions", "/v1/completions", "/chat/comparisons"
HELLO = {"messages": [{"role": "user", "content": "你好"}]}
DEEP = b'{"messages": [{"role": "user", "content": "x"}], "n": ' + b"[" * 900 + b"]" * 900 + b"}"
OBJECT = "Input should be a valid dictionary or object to extract fields from"
ROLES = "'system', 'developer', 'user', 'assistant', 'tool' or 'function'"
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
        (CHAT, b"", None, "Field required"),
        (CHAT, [], None, OBJECT),
        (CHAT, b"null", None, OBJECT),
        (CHAT, {}, "messages", "Field required"),
        (CHAT, {"messages": []}, "messages", "List should have at least 1 item after validation, not 0"),
        (CHAT, {"messages": {}}, "messages", "Input should be a valid list"),
        (CHAT, {"messages": ["你"]}, "messages[0]", OBJECT),
        (CHAT, {"messages": [{}]}, "messages[0].role", "Field required"),
        (CHAT, {"messages": [{"role": "x"}]}, "messages[0].role", f"Input should be {ROLES}"),
        *[
            (CHAT, {"messages": [{"role": "user", "content": content}]}, f"messages[0].content{field}", message)
            for content, field, message in (
                (5, "", "Input should be a valid string"),
                (["x"], "[0]", OBJECT),
                ([{"type": "a"}, {}], "[1].type", "Field required"),
                ([{"type": "a", "text": 1}], "[0].text", "Input should be a valid string"),
            )
        ],
        *[
            (CHAT, {**HELLO, name: value}, name, message)
            for name, value, message in (
                ("temperature", 5, "Input should be less than or equal to 2"),
                ("temperature", "hot", "Input should be a valid number"),
                ("top_p", -0.5, "Input should be greater than or equal to 0"),
                ("top_k", 1.5, "Input should be a valid integer"),
                ("n", 33, "Input should be less than or equal to 32"),
                ("n", True, "Input should be a valid integer"),
                ("n", 10**50, "Input should be less than or equal to 32"),
                ("stream", "yes", "Input should be a valid boolean"),
                ("stream_options", 5, OBJECT),
                ("stop", 5, "Input should be a valid string"),
                ("stop", "x" * 101, "String should have at most 100 characters"),
                ("stop", ["x"] * 17, "List should have at most 16 items after validation, not 17"),
                ("model", ["a"], "Input should be a valid string"),
            )
        ],
        (CHAT, {**HELLO, "stop": ["a", 1]}, "stop[1]", "Input should be a valid string"),
        (CHAT, {**HELLO, "stop": ["a", "x" * 10**6]}, "stop[1]", "String should have at most 100 characters"),
        (CHAT, DEEP, "n", "Input should be a valid integer"),
        (COMPLETIONS, {"prompt": []}, "prompt", "List should have at least 1 item after validation, not 0"),
        (COMPLETIONS, {"prompt": ["x"] * 33}, "prompt", "List should have at most 32 items after validation, not 33"),
        (COMPLETIONS, {"prompt": None}, "prompt", "Input should be a valid string"),
        (COMPLETIONS, {"prompt": [1, 2]}, "prompt[0]", "Input should be a valid string"),
        *[
            (COMPARISONS, {**COMPARED, "replies": replies}, field, message)
            for replies, field, message in (
                (["x"], "replies", "List should have at least 2 items after validation, not 1"),
                (["x", "y" * 20_001], "replies[1]", "String should have at most 20000 characters"),
            )
        ],
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_messages(client: TestClient, path: str, body: Any, param: str | None, message: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post(path, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error = response.json()["error"]
    expected = f"{param or 'The body'}: {message}"
    assert (error["message"], error["param"], error["code"]) == (expected, param, "invalid_value")


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/responses", "use /v1/responses: the base URL ends in /v1, once"),
        ("/chat/completions", "use /v1/chat/completions: the base URL ends in /v1, once"),
        ("/v1/v1/chat/completions", "use /v1/chat/completions: the base URL ends in /v1, once"),
        ("/completions", "use /v1/completions: the base URL ends in /v1, once"),
        ("/models", "use /v1/models: the base URL ends in /v1, once"),
        ("/other", ""),
    ],
)
def test_a_path_that_a_client_gets_wrong_is_corrected(client: TestClient, path: str, remedy: str) -> None:
    error = client.get(path).json()["error"]
    assert error["message"] == "; ".join(filter(None, [f"No such path: {path}", remedy]))
    assert client.post(path, json={"input": "你好"}).json()["error"] == error
