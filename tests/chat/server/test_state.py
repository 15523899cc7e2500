"""The lines of --log-conversations, and what the server remembers of its replies."""

import re
import threading
from pathlib import Path

import pytest

from chatbot.chat.server.state import MOST_WAITING, LineLog, Recent
from tests.chat.server.test_gate import CHAT, HELLO, client_of

REQUESTS: list[tuple[str, dict[str, str]]] = [
    ("/health", {"X-Request-ID": "a-1"}),
    ("/health", {}),
    ("/health", {"X-Request-ID": "a b"}),
    ("/x%1b[31m", {"X-Request-ID": "x" * 101}),
]


def test_conversations_are_logged_only_when_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    for log_conversation in (None, lines.append):
        with client_of(tmp_path, log_conversation=log_conversation) as client:
            client.post(CHAT, json=HELLO)
            list(client.post(CHAT, json={**HELLO, "stream": True}).iter_lines())
    assert len(lines) == 2
    assert '"turns":["你好"],"replies":["你好"]' in lines[1]
    assert "你好" not in caplog.text


def test_log_that_cannot_be_written_fails_no_reply(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said once; a log whose reader has stopped does not stop the server."""
    lines: list[str] = []

    def write(line: str) -> None:
        lines.append(line)
        raise BrokenPipeError(32, "Broken pipe")

    with client_of(tmp_path, log_conversation=write) as client:
        for stream in (False, True, False):
            response = client.post(CHAT, json={**HELLO, "stream": stream})
            assert response.status_code == 200
            assert "error" not in response.text
    assert len(lines) == 3
    assert (
        caplog.text.count(
            "the log cannot be written, and lines of it are lost: BrokenPipeError: [Errno 32] Broken pipe"
        )
        == 1
    )


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


def test_each_request_is_a_line_of_the_access_log_with_its_id(tmp_path: Path) -> None:
    lines: list[str] = []
    with client_of(tmp_path, log_access=lines.append) as client:
        ids = [client.get(path, headers=headers).headers["x-request-id"] for path, headers in REQUESTS]
    assert ids[0] == "a-1"
    assert all(re.fullmatch("[0-9a-f]{16}", given) for given in ids[1:])
    assert len(set(ids)) == len(lines) == len(REQUESTS)
    paths = ("/health 200", "/health 200", "/health 200", "/x?[31m 404")
    for line, given, path in zip(lines, ids, paths, strict=True):
        pattern = rf"\d{{4}}-\d\d-\d\d [\d:]+ {given} address testclient: GET {re.escape(path)} \d+\.\d{{3}}s"
        assert re.fullmatch(pattern, line)
