"""The app in a test's process: routes, errors and limits."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from chatbot.chat.server.app import create_app
from tests.chat.server.fake_models import FakeEngine, fake_models

HELLO = {"model": "a", "messages": [{"role": "user", "content": "你好"}]}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(create_app(fake_models({"a": FakeEngine(), "b": FakeEngine()}, tmp_path))) as client:
        yield client


def test_chat(client: TestClient) -> None:
    body = client.post("/v1/chat/completions", json=HELLO).json()
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "你好", "refusal": None}
    assert client.get("/v1/models").json()["data"][1]["id"] == "b"
    assert client.get("/health").json() == {"status": "ok"}
