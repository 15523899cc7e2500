"""From what the engine answers to the objects and events of the three ways to ask."""

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import httpx
import pytest
from fastapi.testclient import TestClient

from chatbot.chat.server.app import create_app
from chatbot.chat.server.state import MOST_WAITING, LineLog, Recent
from chatbot.inference.questions import Message, Piece, TokenLogProb, Usage
from chatbot.inference.reply_text import Origin
from tests.chat.server.fake_models import FakeEngine, fake_models

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
FIRST, SECOND = TokenLogProb("你", -0.5, (("你", -0.5), ("我", -1.0))), TokenLogProb("好", -0.25)
HEAD = {"id": ANY, "created": ANY, "model": "a", "system_fingerprint": "a-step-1"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
GENERATED = {"score": None, "looked_up": False, "question": None, "read": None}
# The log-probabilities of FIRST and SECOND in a chat.
OTHERS = [
    {"token": "你", "logprob": -0.5, "bytes": [228, 189, 160]},
    {"token": "我", "logprob": -1.0, "bytes": [230, 136, 145]},
]
IN_CHAT = [
    {**OTHERS[0], "top_logprobs": OTHERS},
    {"token": "好", "logprob": -0.25, "bytes": [229, 165, 189], "top_logprobs": []},
]


class Server:
    """A client of a server whose engine gives the same messages to each question.

    write: of the log; by default, it adds to `lines`.
    """

    def __init__(self, folder: Path, write: Callable[[str], None] | None = None) -> None:
        self.engine, self.lines = FakeEngine(), list[str]()
        app = create_app(fake_models({"a": self.engine}, folder), log_conversation=write or self.lines.append)
        self.client = TestClient(app)

    def whole(self, path: str, *messages: Message, **fields: Any) -> Any:
        """The object for these messages."""
        response = self._posted(path, messages, fields)
        assert response.headers["content-type"] == "application/json"
        return response.json()

    def events(self, path: str, *messages: Message, **fields: Any) -> list[Any]:
        """The events of a stream for these messages, without the last one of the chat's and completions' streams."""
        response = self._posted(path, messages, {"stream": True, **fields})
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"  # a proxy passes each event on
        *events, end = response.text.split("\n\n")
        assert end == ""
        if path == RESPONSES:
            named = [event.removeprefix("event: ").split("\ndata: ") for event in events]
            assert [json.loads(data)["type"] for _, data in named] == [name for name, _ in named]
            return [json.loads(data) for _, data in named]
        assert events.pop() == "data: [DONE]"
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def _posted(self, path: str, messages: Iterable[Message], fields: dict[str, Any]) -> httpx.Response:
        self.engine.answer = lambda question: messages
        question = {"messages": [{"role": "user", "content": "q"}], "prompt": "q", "input": "q"}
        return self.client.post(path, json={**question, **fields})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    with server.client:
        yield server


# Two replies, which arrive in turns.
TWO = (
    Piece(1, "b"),
    Piece(0, "你", (FIRST,)),
    Piece(0, "好", (SECOND,)),
    Piece(1, "", finish_reason="length"),
    Piece(0, "", finish_reason="stop"),
    Usage(3, 4),
)


def test_whole_chat(server: Server) -> None:
    made = server.whole(CHAT, *TWO, n=2, logprobs=True, top_logprobs=2)
    first, second = made.pop("choices")
    assert made == {**HEAD, "object": "chat.completion", "usage": USAGE}
    assert made["id"].startswith("chatcmpl-")
    assert made["created"] > 10**9
    message = {"role": "assistant", "content": "你好", "refusal": None}
    log_probs = {"content": IN_CHAT, "refusal": None}
    assert first == {
        "index": 0,
        "message": message,
        "logprobs": log_probs,
        "finish_reason": "stop",
        "chatbot": GENERATED,
    }
    assert (second["index"], second["message"]["content"], second["finish_reason"]) == (1, "b", "length")
    again = server.whole(CHAT, *TWO, n=2)
    assert again["choices"][0]["logprobs"] is None
    assert again["id"] != made["id"]


def test_whole_completion(server: Server) -> None:
    """Its log-probabilities are in another form, with the place of each token in the text."""
    made = server.whole(COMPLETIONS, *TWO, n=2, logprobs=2)
    first, second = made.pop("choices")
    assert made == {**HEAD, "object": "text_completion", "usage": USAGE}
    assert made["id"].startswith("cmpl-")
    log_probs = {
        "tokens": ["你", "好"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"你": -0.5, "我": -1.0}, {}],
        "text_offset": [0, 1],
    }
    assert first == {"index": 0, "text": "你好", "logprobs": log_probs, "finish_reason": "stop", "chatbot": GENERATED}
    assert (second["index"], second["text"], second["finish_reason"]) == (1, "b", "length")


RESPONSE: dict[str, Any] = {
    "id": ANY,
    "object": "response",
    "created_at": ANY,
    "model": "a",
    "status": "completed",
    "usage": {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    },
    **dict.fromkeys(("error", "instructions", "max_output_tokens", "previous_response_id", "temperature", "top_p")),
    "metadata": {},
    "parallel_tool_calls": False,
    "tools": [],
    "tool_choice": "none",
    "incomplete_details": None,
}


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


@pytest.mark.parametrize(
    ("reason", "changes", "status"),
    [
        ("stop", {}, "completed"),
        ("length", {"incomplete_details": {"reason": "max_output_tokens"}}, "incomplete"),
    ],
)
def test_whole_response_and_its_events(server: Server, reason: Any, changes: dict[str, Any], status: str) -> None:
    pieces = Piece(0, "你", (FIRST,)), Piece(0, "好", finish_reason=reason), Usage(3, 4)
    made = server.whole(RESPONSES, *pieces)
    output = made.pop("output")
    assert made == {**RESPONSE, "status": status, **changes}
    key = made["id"].removeprefix("resp_")
    message = {"type": "message", "id": f"msg_{key}", "status": status, "role": "assistant", "content": [part("你好")]}
    assert output == [{**message, "chatbot": GENERATED}]
    assert len(key) == 24

    events = server.events(RESPONSES, *pieces)
    assert [event.pop("sequence_number") for event in events] == [*range(9)]
    created, added, begun, first, second, text, content, item, completed = events
    whole = completed["response"]
    key = whole["id"].removeprefix("resp_")
    place = {"item_id": f"msg_{key}", "output_index": 0, "content_index": 0}
    begin = {**message, "id": f"msg_{key}", "status": "in_progress", "content": []}
    end = {**message, "id": f"msg_{key}", "chatbot": GENERATED}
    assert created == {
        "type": "response.created",
        "response": {**RESPONSE, "id": whole["id"], "status": "in_progress", "output": [], "usage": None},
    }
    assert added == {"type": "response.output_item.added", "output_index": 0, "item": begin}
    assert begun == {"type": "response.content_part.added", **place, "part": part("")}
    for event, delta in ((first, "你"), (second, "好")):
        assert event == {"type": "response.output_text.delta", **place, "delta": delta, "logprobs": []}
    assert text == {"type": "response.output_text.done", **place, "text": "你好", "logprobs": []}
    assert content == {"type": "response.content_part.done", **place, "part": part("你好")}
    assert item == {"type": "response.output_item.done", "output_index": 0, "item": end}
    assert completed == {"type": f"response.{status}", "response": {**made, "id": whole["id"], "output": [end]}}


def test_chunks_of_a_chat(server: Server) -> None:
    """The replies begin in the order of their numbers, whichever comes first."""
    pieces = Piece(1, "好", (SECOND,), "stop"), Piece(0, "", finish_reason="length"), Usage(3, 4)
    events = server.events(CHAT, *pieces, n=2, logprobs=True, stream_options={"include_usage": True})
    assert len({event["id"] for event in events}) == 1
    head = {**HEAD, "object": "chat.completion.chunk"}
    begin = {"delta": {"role": "assistant", "content": "", "refusal": None}, "logprobs": None, "finish_reason": None}
    empty = {"delta": {}, "logprobs": None, "chatbot": GENERATED}
    log_probs = {"content": IN_CHAT[1:], "refusal": None}
    choices = [
        {"index": 0, **begin},
        {"index": 1, **begin},
        {"index": 1, "delta": {"content": "好"}, "logprobs": log_probs, "finish_reason": None},
        {"index": 1, **empty, "finish_reason": "stop"},
        {"index": 0, **empty, "finish_reason": "length"},
    ]
    assert events[:-1] == [{**head, "choices": [choice], "usage": None} for choice in choices]
    assert events[-1] == {**head, "choices": [], "usage": USAGE}
    without = server.events(CHAT, *pieces, n=2, stream_options={"include_usage": False})
    assert len(without) == 5
    assert not any("usage" in event for event in without)


def test_chunks_of_a_completion(server: Server) -> None:
    pieces = Piece(0, "你", (FIRST,)), Piece(0, "好", (SECOND,), "stop"), Usage(3, 4)
    events = server.events(COMPLETIONS, *pieces, logprobs=2)
    assert {event["object"] for event in events} == {"text_completion"}
    choices = [event["choices"][0] for event in events]
    assert [choice["text"] for choice in choices] == ["", "你", "好", ""]
    assert [choice["logprobs"] and choice["logprobs"]["text_offset"] for choice in choices] == [None, [0], [1], None]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]


def test_where_a_reply_comes_from_and_what_was_read(server: Server) -> None:
    origins = Origin("你好"), Origin("你好", is_rated=True)
    pieces = [Piece(number, "a", (), "stop", origin, 1.5, "的一部分") for number, origin in enumerate(origins)]
    first, second = (choice["chatbot"] for choice in server.whole(CHAT, *pieces, Usage(1, 2), n=2)["choices"])
    assert first == {"score": 1.5, "looked_up": True, "question": "你好", "read": "的一部分"}
    assert second == {**first, "question": None}  # of another user, who rated it


def test_replies_that_were_not_found_are_left_out(server: Server) -> None:
    """A search finds one of two replies to the first prompt, and the first one to the second."""
    found = Piece(0, "你", finish_reason="stop"), Usage(1, 1)
    events = server.events(COMPLETIONS, *found, prompt=["q", "r"], n=2)
    assert [event["choices"][0]["index"] for event in events] == [0, 0, 0, 2, 2, 2]
    made = server.whole(COMPLETIONS, *found, prompt=["q", "r"], n=2)
    assert [choice["index"] for choice in made["choices"]] == [0, 2]
    assert made["usage"]["total_tokens"] == 4


def test_lines_of_the_log_hold_the_turns(server: Server) -> None:
    """Each question with its replies, whole or streamed. Control characters of clients are escaped."""
    text = "你\x85\u202e好\x7f\x00\u2066"
    turns = [
        {"role": role, "content": content} for role, content in (("user", "h"), ("assistant", "i"), ("user", text))
    ]
    server.whole(CHAT, *TWO, n=2, messages=turns)
    server.events(COMPLETIONS, Piece(1, "d", finish_reason="stop"), Usage(1, 1), prompt=["q", "r"], n=2)
    server.client.__exit__()  # the lines that wait are written
    assert all(line.isprintable() and "created" in json.loads(line) for line in server.lines)
    found = [json.loads(line) for line in server.lines]
    assert [(line["model"], line["turns"], line["replies"]) for line in found] == [
        ("a", ["h", "i", text], ["你好", "b"]),
        ("a", ["q"], ["d"]),
        ("a", ["r"], ["d"]),
    ]
    assert "你" in server.lines[0]


def test_log_that_cannot_be_written_fails_no_reply(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once."""
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        raise BrokenPipeError(32, "Broken pipe")

    server = Server(tmp_path, write)
    with server.client:
        assert server.whole(CHAT, *TWO, n=2)["choices"]
        assert server.events(CHAT, *TWO, n=2)[-1]["choices"]
    assert len(lines) == 2
    lost = "the log cannot be written, and lines of it are lost: BrokenPipeError: [Errno 32] Broken pipe"
    assert caplog.text.count(lost) == 1


def test_log_whose_reader_has_stopped(caplog: pytest.LogCaptureFixture) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    def write(line: str) -> None:
        begun.set()
        goes_on.wait(10)

    conversations = LineLog("--log-conversations", write)
    conversations.add("0")
    begun.wait(10)
    for number in range(MOST_WAITING + 5):
        conversations.add(str(number))
    goes_on.set()
    conversations.close()
    assert caplog.text.count("lines of it are lost: its reader has stopped") == 1


def test_only_what_was_kept_last_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept again is as if it was new."""
    monkeypatch.setattr("chatbot.chat.server.state.MOST_RECENT", 2)
    recent = Recent[int]()
    for number, key in enumerate("abac"):
        recent.keep(("weibo", key), number)
    assert [recent.get(("weibo", key)) for key in "abc"] == [2, None, 3]
    assert recent.get(("other", "a")) is None
