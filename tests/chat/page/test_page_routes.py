"""The routes of the page."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from chatbot.attempts.settings import stored_values
from chatbot.chat.page import page_files
from chatbot.chat.server.app import create_app
from chatbot.chat.server.page_routes import MAX_TEXT_CHARACTERS
from chatbot.chat.server.state import RATINGS_PER_MINUTE, Limits
from chatbot.config.training import Settings
from chatbot.decoding.reply_text import Origin
from chatbot.flags import compose
from chatbot.inference.request import Piece, Usage
from tests.chat.page.fake_models import fake_server
from tests.chat.server.fake_models import FakeEngine, fake_models

REPLIED = {"model": "weibo", "question": "你好", "reply": "好"}


@pytest.fixture
def ratings(tmp_path: Path) -> Path:
    return tmp_path / "ratings.jsonl"


@pytest.fixture
def client(tmp_path: Path, ratings: Path) -> Iterator[TestClient]:
    app = create_app(fake_server(tmp_path)[0], ratings=ratings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_page_and_its_files(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-cache"  # it names the files of this version
    types = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
    for path in page_files().keys() - {""}:
        file = client.get(f"/{path}")
        assert file.headers["content-type"] == types[path.rpartition(".")[2]]
        assert "immutable" in file.headers["cache-control"]
        assert file.headers["content-encoding"] == "gzip"
        assert client.get(f"/{path}", headers={"Accept-Encoding": "br"}).content == file.content
        assert "content-encoding" not in client.get("/chat/models").headers  # nothing with secrets is compressed
        assert client.get(f"/{path}", headers={"If-None-Match": file.headers["etag"]}).status_code == 304
    assert client.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304


def test_other_files_are_not_sent(client: TestClient) -> None:
    """This holds above all for files of another version, because browsers cache them forever."""
    for path in ("0123456789abcdef/scripts/start.js", "__init__.py", "../__init__.py", "%2e%2e/page/__init__.py", ""):
        assert client.get(f"/page/{path}").status_code == 404


def test_models_are_described(client: TestClient) -> None:
    described = client.get("/chat/models").json()
    assert described["ratings"]
    assert described["most_characters"] == MAX_TEXT_CHARACTERS  # so that the page knows what would be refused
    assert described["models"][0] == {
        "id": "weibo",
        "name": "weibo",
        "sources": ["weibo"],
        "step": 12_400,
        "data": ["weibo.conv.gz"],
        "pairs": 1_098_275,
        "nats_per_character": 3.8712,
        "validated": True,
        "format": None,
        "questions": ["今天天气真好", "你好"],
        "turns": 2,
    }


def test_attention(client: TestClient) -> None:
    found = client.post("/chat/attention", json={**REPLIED, "history": ["a", "b", "c", "d"]}).json()
    assert found["written_to"] == ""  # generated
    assert found["question"] == ["c", "d", "你", "好"]  # the model reads two turns before
    assert found["reply"] == ["好", "<eos>"]
    assert [sum(row) for row in found["weights"]] == pytest.approx([1, 1], abs=1e-3)
    long = client.post("/chat/attention", json={**REPLIED, "question": "你" * 3000}).json()
    assert len(long["question"]) == 2000  # as the model got it
    for body, written_to in (({**REPLIED, "question": ""}, ""), ({**REPLIED, "reply": "x"}, "What is x?")):
        other = client.post("/chat/attention", json=body).json()
        assert (other["weights"], other["written_to"]) == (None, written_to)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("attention", {**REPLIED, "model": "../../etc"}, 404),
        ("attention", {**REPLIED, "question": "x" * (MAX_TEXT_CHARACTERS + 1)}, 400),
        ("attention", {**REPLIED, "history": ["x"] * 201}, 400),
        ("ratings", {**REPLIED, "rating": "great"}, 400),
        ("ratings", {**REPLIED, "rating": "good", "model": "none"}, 404),
        ("ratings", {**REPLIED, "rating": "good", "replaces": {"rating": "bad"}}, 400),
    ],
)
def test_refused_requests_change_nothing(
    client: TestClient, ratings: Path, path: str, body: object, status: int
) -> None:
    response = client.post(f"/chat/{path}", json=body)
    assert response.status_code == status
    assert response.json()["error"]["message"]
    assert not ratings.exists()


def test_ratings_are_appended(client: TestClient, ratings: Path) -> None:
    hostile = '\u2028</script>\n{"answer": "x"}'
    recorded = client.post("/chat/ratings", json={**REPLIED, "reply": hostile, "rating": "good"}).json()
    record = json.loads(ratings.read_bytes())
    assert recorded == {"recorded": True, "time": record.pop("time")}
    assert re.fullmatch("[0-9a-f]{16}", record.pop("client"))
    assert record == {"history": [], "question": "你好", "answer": hostile, "rating": "good", "model": "weibo"}
    ratings.unlink()
    ratings.mkdir()
    response = client.post("/chat/ratings", json={**REPLIED, "rating": "good"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "ratings")
    assert str(ratings) not in response.text


def rated(client: TestClient, ratings: Path, given: str, reply: str = "好", **replaces: str) -> dict[str, Any]:
    """Rate a reply to 你好 and return the record."""
    body = {**REPLIED, "reply": reply, "rating": given, "replaces": replaces or None}
    assert client.post("/chat/ratings", json=body).is_success
    record: dict[str, Any] = json.loads(ratings.read_bytes().splitlines()[-1])
    return record


def test_only_replies_of_the_server_are_looked_up(
    tmp_path: Path, ratings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of other replies lack `written_to`. The attempt is named as in the terminal."""
    origin = Origin("您好", is_rated=True)
    pieces = Piece(0, "好", finish_reason="stop", origin=origin), Usage(1, 1)
    models = fake_models({"gpt": FakeEngine(lambda question: pieces)}, tmp_path)
    monkeypatch.setattr(models, "directories", lambda: {"weibo": tmp_path / "gpt"})
    with TestClient(create_app(models, Limits(live_ratings=True), ratings=ratings)) as client:
        assert "written_to" not in rated(client, ratings, "good")
        chat = {"model": "weibo", "messages": [{"role": "user", "content": "你好"}]}
        for stream in (False, True):
            assert client.post("/v1/chat/completions", json={**chat, "stream": stream}).is_success
            bad = rated(client, ratings, "bad")
            good = rated(client, ratings, "good", rating="bad", time=bad["time"])
            assert good["written_to"] == bad["written_to"] == "您好"
            assert good["model"] == "gpt"
        why = client.post("/chat/attention", json=REPLIED).json()
        assert (why["written_to"], why["rated_good"]) == ("", True)
        assert "written_to" not in rated(client, ratings, "good", reply="坏")
        long = {**chat, "messages": [{"role": "user", "content": "你" * 3000}]}
        assert client.post("/v1/chat/completions", json=long).is_success  # the model gets a part of it
        why = client.post("/chat/attention", json={**REPLIED, "question": "你" * 3000, "reply": "好"}).json()
        assert why["rated_good"]
    assert [bool(line.strip()) for line in ratings.read_bytes().splitlines()] == [True, False, True, False, True, True]


@pytest.mark.parametrize(
    ("limits", "has_effect", "is_operator"),
    [
        ({}, False, False),
        ({"live_ratings": True}, True, False),
        ({"keys": [b"one"]}, True, True),  # one person's, as far as the server knows
        ({"keys": [b"one", b"two"]}, True, False),
    ],
)
def test_ratings_take_effect_with_a_key_or_live_ratings(
    tmp_path: Path, ratings: Path, limits: dict[str, Any], has_effect: bool, is_operator: bool
) -> None:
    """Clients are distinguished, and each has its own rate limit."""
    app = create_app(fake_server(tmp_path)[0], Limits(**limits), ratings=ratings)
    addresses = ("10.0.0.1", "10.0.0.2")
    with TestClient(app, client=(addresses[0], 1)) as first, TestClient(app, client=(addresses[1], 1)) as second:
        for client, key in ((first, b"one"), (second, limits.get("keys", [b"one"])[-1])):
            client.headers["Authorization"] = f"Bearer {key.decode()}"
            chat = {"model": "weibo", "messages": [{"role": "user", "content": "你好"}]}
            reply = client.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]
            record = rated(client, ratings, "bad", reply)
            assert (("written_to" in record), ("client" not in record)) == (has_effect, is_operator)
        if not is_operator:
            assert len({json.loads(line)["client"] for line in ratings.read_bytes().splitlines()}) == 2
            body = {**REPLIED, "rating": "bad"}
            statuses = [first.post("/chat/ratings", json=body).status_code for _ in range(RATINGS_PER_MINUTE + 1)]
            assert statuses == [200] * (RATINGS_PER_MINUTE - 1) + [429] * 2
            assert second.post("/chat/ratings", json=body).is_success


def test_rating_is_replaced(client: TestClient, ratings: Path) -> None:
    """The new record has the new history, which ratings of earlier turns can have changed."""
    body = {**REPLIED, "reply": "😀", "history": ["q", "r"]}
    time = client.post("/chat/ratings", json={**body, "rating": "good"}).json()["time"]
    replaced = {"rating": "good", "time": time}
    assert client.post("/chat/ratings", json={**body, "history": [], "rating": "bad", "replaces": replaced}).is_success
    (last,) = [json.loads(line) for line in ratings.read_bytes().splitlines() if line.strip()]
    assert (last["rejected"], last["history"]) == ("😀", [])


def test_only_the_page_itself_needs_no_key(tmp_path: Path, ratings: Path) -> None:
    app = create_app(fake_server(tmp_path)[0], Limits(keys=[b"secret"]), ratings=ratings)
    with TestClient(app) as client:
        for path in page_files():
            assert client.get(f"/{path}").status_code == 200
        assert client.get("/chat/models").status_code == 401
        for path in ("attention", "ratings"):
            assert client.post(f"/chat/{path}", json={}).status_code == 401


def test_card_of_a_model_that_is_not_loaded(tmp_path: Path) -> None:
    """It is read from the files of the attempt, which can be incomplete during training."""
    models = fake_models({"a": FakeEngine(), "broken": FakeEngine()}, tmp_path)
    settings = stored_values(compose(Settings, attempt="a", history=2, data=("pairs.tsv",)))
    (tmp_path / "a/config.json").write_text(json.dumps(settings), encoding="utf-8")
    with TestClient(create_app(models)) as client:
        described = client.get("/chat/models").json()
        assert client.post("/chat/ratings", json={**REPLIED, "rating": "good"}).status_code == 404
    assert described["ratings"] is False
    (model,) = described["models"]
    assert (model["id"], model["data"], model["step"], model["turns"]) == ("a", ["pairs.tsv"], 1, 2)


def test_no_path_leads_out_of_the_prefix(client: TestClient) -> None:
    """Behind a proxy, the page can have any path."""
    scripts = [client.get(f"/{path}").text for path in page_files() if path.endswith(".js")]
    requested = [path for script in scripts for path in re.findall(r"\"((?:\w+/)*(?:v1|chat)/[\w/]+)\"", script)]
    assert sorted(set(requested)) == ["chat/attention", "chat/models", "chat/ratings", "v1/chat/completions"]
    assert not re.findall(r"[\"`]/(?:v1|chat|page)", "".join([client.get("/").text, *scripts]))
