"""Refused bodies: the status, the field and the message. Unusual bodies that are accepted."""

import codecs
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient

from chatbot.chat.loading import LoadedModel
from chatbot.chat.server.app import create_app
from chatbot.config.decoding import DecodingSettings
from tests.chat.server.fake_models import FakeEngine, FakeResponder, fake_models, served

CHAT, COMPLETIONS, _ = WAYS = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "你好"}], "prompt": "你好", "input": "你好"}
CHINESE = '{"messages": [{"role": "user", "content": "你好"}]}'
BEGIN = b'{"messages": [{"role": "user", "content": "x"}], '
REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text(encoding="utf-8"))
RESPONDERS = {
    "a": FakeResponder(DecodingSettings(), DecodingSettings(beam_size=5)),
    "sample": FakeResponder(DecodingSettings(), DecodingSettings(top_p=0.8)),
    "looking up": FakeResponder(DecodingSettings(), DecodingSettings(beam_size=5, retrieve="30"), retrieval=True),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("models")

    def open_model(directory: Path) -> LoadedModel:
        return served(FakeEngine(), responder=RESPONDERS[directory.name], directory=str(directory))

    models = fake_models(dict.fromkeys(RESPONDERS), folder, open_model=open_model)
    with TestClient(create_app(models, ratings=folder / "ratings.jsonl")) as client:
        yield client


def refusal(client: TestClient, path: str, body: Any) -> dict[str, Any]:
    """Return the error for a body. A dict gets a question if it has none."""
    body = {**HELLO, **body} if isinstance(body, dict) else body
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = client.post(path, content=content, headers={"Content-Type": "application/json"})
    error: dict[str, Any] = response.json()["error"]
    assert (response.status_code, error["type"]) == (400, "invalid_request_error")
    return error


def rows(part: str) -> list[list[Any]]:
    """Return the rows of a part of refused.yaml with their paths."""
    return [[path, *row] for path, rows in REFUSED[part].items() for row in rows]


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        *rows("declared"),
        *[(path, {"n": "2"}, "n", "Input should be a valid integer") for path in WAYS],
        (CHAT, b"", None, "Field required"),
        (CHAT, {"stop": "x" * 101}, "stop", "String should have at most 100 characters"),
        (CHAT, {"stop": ["x"] * 17}, "stop", "List should have at most 16 items after validation, not 17"),
        (CHAT, {"stop": ["a", "x" * 10**6]}, "stop[1]", "String should have at most 100 characters"),
        (CHAT, BEGIN + b'"n": ' + b"[" * 900 + b"]" * 900 + b"}", "n", "Input should be a valid integer"),
        (COMPLETIONS, {"prompt": ["x"] * 33}, "prompt", "List should have at most 32 items after validation, not 33"),
    ],
    ids=lambda value: None if isinstance(value, str) else "",
)
def test_invalid_fields_are_named(client: TestClient, path: str, body: Any, param: str | None, message: str) -> None:
    error = refusal(client, path, body)
    expected = f"{param or 'The body'}: {message}"
    assert (error["message"], error["param"], error["code"]) == (expected, param, "invalid_value")


@pytest.mark.parametrize(("path", "body", "param"), rows("no_model_can"))
def test_unsupported_features_are_refused(client: TestClient, path: str, body: dict[str, Any], param: str) -> None:
    assert refusal(client, path, body)["param"] == param


@pytest.mark.parametrize(("body", "param"), REFUSED["exclude_each_other"])
def test_fields_that_exclude_each_other_are_named(client: TestClient, body: dict[str, Any], param: str) -> None:
    for path in WAYS:
        error = refusal(client, path, body)
        assert (error["param"], error["code"]) == (param, "unsupported_value")
        assert error["message"].startswith(f"{param}: ")
        assert "--" not in error["message"]


def message(text: Any = "x", **fields: Any) -> bytes:
    """Return a body with one message."""
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


PARTS, TURN = [{"type": "text"}], {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"messages": ' * 50_000, 400),
        # Deeper than the JSON parser of any version of Python reads; that of 3.13 reads 5,000 levels.
        (BEGIN + b'"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400),
        (BEGIN + b'"user": ' + b"[" * 900 + b"]" * 900 + b"}", 200),
        (BEGIN + b'"top_p": 1e999}', 400),
        (BEGIN + b'"seed": ' + b"9" * 5000 + b"}", 400),
        (message(min_score=float("inf")), 400),
        (message(min_score=-1e300), 200),
        (message(temperature=float("nan")), 400),
        (message(seed=10**300, max_tokens=10**300, top_k=10**300), 200),
        (message(seed=-(2**70)), 200),
        (message(model="a\0"), 404),
        (b'{"messages": 3, ' + BEGIN[1:-2] + b"}", 200),
        (codecs.BOM_UTF8 + message(), 200),
        (message(max_tokens=-1, max_completion_tokens=-1.0), 200),
        (message(max_tokens=0), 400),
        (message(max_tokens=-2), 400),
        (message("\0\x07\x1b[31m\u202e\u0627\u200f👩‍👩‍👧"), 200),
        (json.dumps({"messages": [TURN] * 1000}).encode(), 200),
        (json.dumps({"messages": [TURN] * 2001}).encode(), 400),
        (message(PARTS * 200), 200),
        (message(PARTS * 201), 400),
    ],
    ids=lambda value: repr(value[:60]) if isinstance(value, bytes) else None,
)
def test_hostile_bodies(client: TestClient, caplog: pytest.LogCaptureFixture, body: bytes, status: int) -> None:
    """The status is right, nothing is logged, and the next request is answered."""
    response = client.post(CHAT, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text
    error = response.json().get("error")
    assert (error is None) if status == 200 else (error["type"] == "invalid_request_error")
    assert client.post(CHAT, json=HELLO).json()["choices"][0]["message"]["content"] == "你好"
    assert [record for record in caplog.records if record.name.startswith("chatbot.")] == []


def posted(content: bytes, content_type: str) -> dict[str, Any]:
    """Return the arguments of a request with a content."""
    return {"content": content, "headers": {"Content-Type": content_type}}


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "message"),
    [
        ("GET", "/nothing", {}, 404, "No such path: /nothing"),
        *[
            (method, path, {}, 404, f"No such path: {path}; use /v1{end}: the base URL must end in a single /v1")
            for method, path, end in (
                ("POST", "/chat/completions", "/chat/completions"),
                ("POST", "/completions", "/completions"),
                ("GET", "/v1/v1/responses", "/responses"),
                ("GET", "/models", "/models"),
            )
        ],
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", {}, 404, "No model is named '../../etc/passwd'; the models are "),
        ("POST", CHAT, {"json": {"model": "x", **HELLO}}, 404, "No model is named 'x'; the models are a, sample"),
        ("POST", CHAT, {"json": {"model": "A" * 10**5, **HELLO}}, 404, f"No model is named '{'A' * 40}'; the models"),
        ("GET", CHAT, {}, 405, f"GET is not allowed for {CHAT}; use POST"),
        ("POST", "/v1/models", {"json": {}}, 405, "POST is not allowed for /v1/models; use GET"),
        ("POST", CHAT, posted(b" " * (2**21 + 1), "application/json"), 413, "The body has more than 2,097,152 bytes"),
        ("POST", CHAT, {"content": b"x" * (2**21 + 1)}, 415, "The body must be JSON, with"),
        # A browser sends such requests to other sites without asking them first.
        ("POST", "/chat/ratings", posted(b"{}", "text/plain"), 415, "The body must be JSON"),
        ("POST", CHAT, posted(b"{}", "x/a+json"), 415, "The body must be JSON"),
        ("POST", CHAT, posted(b"{}", "application/a+json"), 400, "messages: Field"),
        ("POST", CHAT, posted(b"{}", "application/json; charset=utf-8"), 400, "messages: Field"),
        ("POST", CHAT, posted(b"{'a'", "application/json"), 400,
         "The body is not JSON in UTF-8: unexpected character, expected a string key: line 1 column 2 (char 1); send "),
        *[
            ("POST", CHAT, posted(CHINESE.encode(charset), "application/json"), 400,
             f"The body is not JSON in UTF-8: 'utf-8' codec can't decode byte {place}: ")
            for charset, place in (("gbk", "0xc4 in position 43"), ("utf-16", "0xff in position 0"))
        ],
        ("POST", CHAT, {"json": {"input": "x"}}, 400,
         "messages: Field required; send a body with input to /v1/responses"),
        ("POST", "/v1/responses", {"json": HELLO | {"input": None}}, 400, "input: Input should be a valid string"),
        ("POST", "/v1/responses", {"json": {"messages": []}}, 400,
         "input: Field required; send a body with messages to /v1/chat/completions"),
        ("POST", COMPLETIONS, {"json": {}}, 400, "prompt: Field required"),
    ],
)  # fmt: skip
def test_errors_have_openais_form_and_a_remedy(
    client: TestClient, method: str, path: str, options: dict[str, Any], status: int, message: str
) -> None:
    response = client.request(method, path, **options)
    error = response.json()["error"]
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].startswith(message)
    assert len(error["message"]) < 200


def test_log_probs_are_bounded(client: TestClient) -> None:
    for prompts, top, status in ((32, 0, 200), (1, 20, 200), (2, 20, 400)):
        body = {"prompt": ["x"] * prompts, "n": 32, "logprobs": top}
        response = client.post(COMPLETIONS, json=body)
        assert response.status_code == status
    expected = "logprobs: 20 alternatives per token exceed the limit of 15 for 64 replies"
    assert response.json()["error"]["message"] == expected
