"""Parsing of bodies: limits, and how long other requests wait meanwhile."""

import asyncio
import dataclasses
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.chat.server.app import create_app
from chatbot.chat.server.errors import CLIENT_LEFT, ApiError
from chatbot.chat.server.gate import MAX_BODY_BYTES, MAX_VALUES, check_value_count
from chatbot.inference.request import Question
from tests.chat.server.fake_models import FakeEngine, echo, fake_models
from tests.chat.server.running import status_of
from tests.pace import unit

CHAT, COMPLETIONS, RATINGS = "/v1/chat/completions", "/v1/completions", "/chat/ratings"
TEXTS = st.text('a\\"u,[{\ud83d\ude00\udbff\udc00d8')
MAX_WAIT = 10  # units of the fixed piece of work in `pace`


@settings(max_examples=30)
@given(st.recursive(TEXTS, lambda values: st.lists(values) | st.dictionaries(TEXTS, values)))
def test_values_within_strings_are_not_counted(value: Any) -> None:
    """Only values outside strings count, whatever the strings contain."""
    text = json.dumps(value)
    check_value_count(f"[{json.dumps(',[{' * MAX_VALUES)}, {text}]".encode())
    with pytest.raises(ApiError, match="more than 20,000 values"):
        check_value_count(f"[{text}, {'[],' * (MAX_VALUES // 2)} 1]".encode())


HELLO = '"messages": [{"role": "user", "content": "x"}]'


def filled(begin: str, unit: str, end: str, separator: str = ",") -> bytes:
    """Return a body of nearly 2 MiB."""
    size = MAX_BODY_BYTES - len((begin + end).encode()) - 1
    return (begin + separator.join([unit] * (size // len((unit + separator).encode()))) + end).encode()


def fields(**values: Any) -> bytes:
    return json.dumps({"model": "a", **values}).encode()


TEXT = '{"messages": [{"role": "user", "content": "'
PARTS = [{"type": "text", "text": "x"}] * 200
REPLIED = {"model": "a", "question": "x" * 20_000, "reply": "x" * 20_000, "rating": "good"}
WORST = {
    "wrong messages": (CHAT, filled('{"messages": [', "{}", "]}"), 400),
    "most messages": (CHAT, fields(messages=[{"role": "user", "content": "x" * 900}] * 2000), 200),
    "wrong roles": (CHAT, fields(messages=[{"role": "x"}] * 2000), 400),
    "wrong parts": (CHAT, filled('{"messages": [{"role": "user", "content": [', "1", "]}]}"), 400),
    "most parts": (CHAT, fields(messages=[{"role": "user", "content": PARTS}] * 30), 200),
    "open lists": (CHAT, b"[" * 2_000_000, 400),
    "most values": (CHAT, f'{{{HELLO}, "x": [{",".join(["[" * 99 + "]" * 99] * 195)}]}}'.encode(), 200),
    "longest number": (CHAT, filled(f'{{{HELLO}, "x": ', "9", "}", ""), 400),
    "quotation marks": (CHAT, filled(f'{{{HELLO}, "x": [', '""', "]}"), 400),
    "spaces": (CHAT, filled(f"{{{HELLO} ", " ", "}", ""), 200),
    "escaped quotes": (CHAT, filled(TEXT, '\\",', '"}]}', ""), 200),
    "halves": (CHAT, filled(TEXT, "\\ud800", '"}]}', ""), 400),
    "wrong value": (CHAT, filled('{"n": "', "x", f'", {HELLO}}}', ""), 400),
    "prompts": (COMPLETIONS, fields(prompt=["x" * 60_000] * 32, n=32), 200),
    "history": (RATINGS, json.dumps({**REPLIED, "history": ["x" * 9000] * 200}).encode(), 413),
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "status", "requests"),
    [*((*worst, 1) for worst in WORST.values()), (*WORST["quotation marks"], 12)],
    ids=[*WORST, "twelve at once"],
)
def test_no_body_keeps_other_requests_waiting(
    tmp_path: Path, path: str, body: bytes, status: int, requests: int
) -> None:
    found, wait = longest_wait(tmp_path, path, body, requests=requests)
    assert found == status
    assert wait < MAX_WAIT


@pytest.mark.parametrize(
    "changes",
    [
        {"query_string": b"a&" * 30_000},
        {"headers": [(b"host", b"localhost"), (b"cookie", b"a=b;" * 15_000)]},
        {"headers": [(b"host", b"localhost"), *[(b"x", b"x" * 300)] * 200]},
        {"path": "/v1/models/" + "a/" * 30_000},
    ],
    ids=["query", "cookies", "headers", "path"],
)
def test_no_head_keeps_other_requests_waiting(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert longest_wait(tmp_path, "/v1/models", b"", {"method": "GET", **changes})[1] < MAX_WAIT


def longest_wait(folder: Path, path: str, body: bytes, changes: Any = None, requests: int = 1) -> tuple[int, float]:
    """Return the status of equal requests, and the longest time for which /health was not answered meanwhile.

    It is the time of the event loop's thread, which other processes do not change, in units of `pace`, and the shortest
    of three: a collection of garbage may fall into one. Replies are short, since their time is measured elsewhere.
    """

    async def measured() -> tuple[int, float]:
        engine = FakeEngine(lambda question: echo(short(question)))
        app = create_app(fake_models({"a": engine}, folder), ratings=folder / "ratings.jsonl")
        await status_of(app, "GET", "/health")
        asking = asyncio.gather(*(status_of(app, "POST", path, body, changes) for _ in range(requests)))
        waits = []
        while not asking.done():
            begin = time.thread_time()
            await asyncio.sleep(0)  # the others have their turn
            await status_of(app, "GET", "/health")
            waits.append(time.thread_time() - begin)
        (status,) = set(await asking)
        return status, max(waits) / unit(time.thread_time)

    def short(question: Question) -> Question:
        return dataclasses.replace(question, text=question.text[:20])

    found: list[tuple[int, float]] = []
    while len(found) < 3 and (not found or found[-1][1] >= MAX_WAIT):
        found.append(asyncio.run(measured()))
    return found[-1]


def test_incomplete_body_of_a_disconnected_client(tmp_path: Path) -> None:
    app = create_app(fake_models({"a": FakeEngine(echo)}, tmp_path))
    leaves = threading.Event()
    leaves.set()
    assert asyncio.run(status_of(app, "POST", CHAT, b"{", is_whole=False, leaves=leaves)) == CLIENT_LEFT
