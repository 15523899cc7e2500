"""Responses and streams of the three routes for the messages of an engine."""

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from chatbot.chat.server.app import create_app
from chatbot.chat.server.state import MAX_QUEUED_LINES, LineLog
from chatbot.decoding.reply_text import Origin
from chatbot.inference.request import Message, Piece, TokenLogProb, Usage
from tests.chat.server.fake_models import FakeEngine, fake_models

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EXCHANGES = Path(__file__).parent / "exchanges"
ENDED = Usage(3, 4)
FIRST, SECOND = TokenLogProb("你", -0.5, (("你", -0.5), ("我", -1.0))), TokenLogProb("好", -0.25)
# Two replies, which arrive in turns.
TWO = (
    *(Piece(1, "b"), Piece(0, "你", (FIRST,)), Piece(0, "好", (SECOND,))),
    *(Piece(1, "", finish_reason="length"), Piece(0, "", finish_reason="stop"), ENDED),
)
SECOND_FIRST = Piece(1, "好", (SECOND,), "stop"), Piece(0, "", finish_reason="length"), ENDED
# Both were written by a person, the second one as a reply to another user, who rated it.
LOOKED_UP = [
    *(Piece(i, "a", (), "stop", Origin("你好", is_rated=i == 1), 1.5, "的一部分") for i in range(2)),
    ENDED,
]
# One of two replies to a prompt.
FOUND = Piece(0, "你", finish_reason="stop"), Usage(1, 1)


def one_reply(reason: Any) -> tuple[Message, ...]:
    return Piece(0, "你", (FIRST,)), Piece(0, "好", (SECOND,), finish_reason=reason), ENDED


class Server:
    """A client of a server with an engine that answers every question with the same messages.

    write: writes a line of the log, by default to `lines`.
    """

    def __init__(self, folder: Path, write: Callable[[str], None] | None = None) -> None:
        self.engine, self.lines = FakeEngine(), list[str]()
        app = create_app(fake_models({"a": self.engine}, folder), log_conversation=write or self.lines.append)
        self.client = TestClient(app)

    def answer(self, path: str, given: Iterable[Message], **fields: Any) -> Any:
        """Return the response for messages of the engine."""
        self.engine.answer = lambda question: given
        question = {"messages": [{"role": "user", "content": "q"}], "prompt": "q", "input": "q"}
        return self.client.post(path, json={**question, **fields})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    with server.client:
        yield server


@pytest.mark.parametrize(
    ("name", "path", "messages", "fields"),
    [
        ("chat_with_log_probabilities", CHAT, TWO, {"n": 2, "logprobs": True, "top_logprobs": 2}),
        ("chat_that_was_looked_up", CHAT, LOOKED_UP, {"n": 2}),
        ("stream_of_a_chat", CHAT, SECOND_FIRST, {"n": 2, "stream": True, "stream_options": {"include_usage": False}}),
        ("stream_of_a_chat_with_all", CHAT, SECOND_FIRST,
         {"n": 2, "stream": True, "logprobs": True, "stream_options": {"include_usage": True}}),
        ("completion", COMPLETIONS, TWO, {"n": 2, "logprobs": 2}),
        ("completion_of_fewer_than_asked_for", COMPLETIONS, FOUND, {"prompt": ["q", "r"], "n": 2}),
        ("stream_of_a_completion", COMPLETIONS, one_reply("stop"), {"stream": True, "logprobs": 2}),
        ("stream_of_fewer_than_asked_for", COMPLETIONS, FOUND, {"prompt": ["q", "r"], "n": 2, "stream": True}),
        ("response", RESPONSES, one_reply("stop"), {}),
        ("stream_of_a_response", RESPONSES, one_reply("stop"), {"stream": True}),
        ("stream_of_a_response_that_was_cut", RESPONSES, one_reply("length"), {"stream": True}),
    ],
)  # fmt: skip
def test_replies_have_exactly_the_fields_of_openai_and_our_own(
    server: Server, name: str, path: str, messages: Iterable[Message], fields: dict[str, Any]
) -> None:
    """The files contain the responses without the random id and the time."""
    response = server.answer(path, messages, **fields)
    text, kind = response.text, response.headers["content-type"]
    if fields.get("stream"):
        assert response.headers["x-accel-buffering"] == "no"  # a proxy passes each event on
        assert kind.startswith("text/event-stream")
    else:
        assert kind == "application/json"
        text = json.dumps(response.json(), ensure_ascii=False, indent=1, sort_keys=True) + "\n"
    (number,) = set(re.findall("[0-9a-f]{24}", text))
    shown = re.sub(r'("created(?:_at)?": ?)\d{10}\b', r"\1TIME", text.replace(number, "NUMBER"))
    assert shown == (EXCHANGES / f"{name}.txt").read_text(encoding="utf-8")
    assert number not in server.answer(path, messages, **fields).text


def test_log_probabilities_have_the_bytes_of_each_token_and_its_place_in_the_text(server: Server) -> None:
    """A character in bytes has the offset of its first byte. The reply has no leading space."""
    spelled = [" a", *"龘".encode().decode("ascii", "surrogateescape"), " b", "\udcff"]
    tokens = [TokenLogProb(text, -0.5, ((text, -0.5),)) for text in spelled]
    pieces = Piece(0, "a", (*tokens[:2],)), Piece(0, "龘 b", (*tokens[2:],)), Piece(0, "", (), "stop"), ENDED
    found = server.answer(CHAT, pieces, logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"]
    assert [one["bytes"] for one in found] == [[32, 97], [0xE9], [0xBE], [0x98], [32, 98], [0xFF]]
    assert [one["token"] for one in found] == [" a", "\ufffd", "\ufffd", "\ufffd", " b", "\ufffd"]
    assert [one["top_logprobs"] for one in found] == [
        [{name: one[name] for name in ("token", "logprob", "bytes")}] for one in found
    ]
    whole = server.answer(COMPLETIONS, pieces, logprobs=1).json()["choices"][0]["logprobs"]
    assert whole["text_offset"] == [0, 1, 1, 1, 2, 4]
    assert whole["tokens"] == [*map("".join, whole["top_logprobs"])] == [one["token"] for one in found]
    lines = server.answer(COMPLETIONS, pieces, logprobs=1, stream=True).text.split("\n\n")[:-2]
    chunks = [json.loads(line.removeprefix("data: "))["choices"][0]["logprobs"] for line in lines]
    assert [offset for chunk in chunks if chunk for offset in chunk["text_offset"]] == whole["text_offset"]


def test_log_of_conversations_contains_the_turns(server: Server) -> None:
    """Each question is logged with its replies, streamed or not, and control characters are escaped."""
    text = "你\x85\u202e好\x7f\x00\u2066"
    turns = [
        {"role": role, "content": content} for role, content in (("user", "h"), ("assistant", "i"), ("user", text))
    ]
    server.answer(CHAT, TWO, n=2, messages=turns)
    found = Piece(1, "d", finish_reason="stop"), ENDED
    server.answer(COMPLETIONS, found, prompt=["q", "r"], n=2, stream=True)
    server.client.__exit__()  # the lines that wait are written
    assert all(line.isprintable() and "created" in json.loads(line) for line in server.lines)
    assert [(line["model"], line["turns"], line["replies"]) for line in map(json.loads, server.lines)] == [
        ("a", ["h", "i", text], ["你好", "b"]),
        ("a", ["q"], ["d"]),
        ("a", ["r"], ["d"]),
    ]
    assert "你" in server.lines[0]


def test_unwritable_log_does_not_fail_replies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The error is logged once."""
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        raise BrokenPipeError(32, "Broken pipe")

    server = Server(tmp_path, write)
    with server.client:
        assert server.answer(CHAT, TWO, n=2).json()["choices"]
        assert server.answer(CHAT, TWO, n=2, stream=True).text.endswith("data: [DONE]\n\n")
    assert len(lines) == 2
    lost = "cannot write the log; lines are lost: BrokenPipeError: [Errno 32] Broken pipe"
    assert caplog.text.count(lost) == 1


def test_log_whose_reader_has_stopped(caplog: pytest.LogCaptureFixture) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    def write(line: str) -> None:
        begun.set()
        goes_on.wait(240)

    conversations = LineLog("--log-conversations", write)
    conversations.add("0")
    begun.wait(240)
    for number in range(MAX_QUEUED_LINES + 5):
        conversations.add(str(number))
    goes_on.set()
    conversations.close()
    assert caplog.text.count("lines are lost: the output is not being read") == 1
