"""Who has a key, and how many wrong ones are tried."""

from pathlib import Path

import pytest

from chatbot.chat.server.app import create_app
from chatbot.chat.server.errors import ApiError
from chatbot.chat.server.gate import Keys, read_keys
from chatbot.chat.server.state import Limits
from chatbot.errors import UserError
from tests.chat.server.fake_models import FakeEngine, fake_models
from tests.chat.server.test_gate import CHAT, HELLO, client_at, client_of, error_of, with_key


def test_keys(tmp_path: Path) -> None:
    with client_of(tmp_path, limits=Limits(keys=(b"one", b"two"))) as client:
        for header, message in {
            **dict.fromkeys(("", "Bearer", "Bearer ", "one", "Basic one"), "A key is needed"),
            **dict.fromkeys(("Bearer three", "Bearer one two", "Bearer \u00e9"), "This key is not valid"),
        }.items():
            headers = {"Authorization": header.encode("latin-1")}
            response = client.post(CHAT, json=HELLO, headers=headers)
            error = error_of(response, 401)
            assert (error["code"], error["message"].split(":")[0]) == ("invalid_api_key", message)
            assert response.headers["www-authenticate"] == "Bearer"
        for key in ("one", "two"):
            assert client.post(CHAT, json=HELLO, headers={"Authorization": f"bearer {key}"}).status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json", "/other"):
            assert client.get(path).status_code == 401
        assert client.get("/health").status_code == 200


def test_file_of_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"one\r\n\n  two \n")
    assert read_keys(path) == [b"one", b"two"]
    for content, message in ((b"\n", "no keys"), ("钥匙".encode(), "key 1 has other characters"), (b"a b", "key 1")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_keys(path)
    for byte in range(256):
        path.write_bytes(b"a%cb" % byte)
        if 0x21 <= byte <= 0x7E or byte in b"\r\n":
            assert read_keys(path) == (b"a%cb" % byte).splitlines()
        else:
            with pytest.raises(UserError, match="key 1 has other characters"):
                read_keys(path)
    for name, message in (("missing", "No such file"), ("", "Is a directory; give a file")):
        with pytest.raises(UserError, match=message):
            read_keys(tmp_path / name)


def test_wrong_keys_are_few_and_never_keep_others_out(tmp_path: Path) -> None:
    """Whoever guesses learns nothing more after some; a valid key passes, also from the same address."""
    app = create_app(fake_models({"a": FakeEngine()}, tmp_path), Limits(keys=(b"one", b"two")))
    with client_at("192.0.2.1", app) as client:
        for _ in range(30):
            error_of(client.get("/v1/models"), 401)
        for number in range(10):
            error_of(client.get("/v1/models", headers=with_key(str(number))), 401)
        response = client.get("/v1/models", headers=with_key("wrong"))
        error = error_of(response, 429)
        assert error["message"] == "Too many wrong keys from this address in a minute; wait 6 seconds"
        assert response.headers["retry-after"] == "6"
        for key in ("one", "two"):
            assert client.get("/v1/models", headers=with_key(key)).status_code == 200
        other = client_at("192.0.2.2", app)
        error_of(other.get("/v1/models", headers=with_key("wrong")), 401)
        assert client.get("/health").status_code == 200


def test_memory_of_wrong_keys_is_bounded() -> None:
    keys = Keys([b"one"])
    for number in range(10_100):
        with pytest.raises(ApiError):
            keys.client("Bearer two", str(number))
    assert len(keys._wrong._buckets) == 10_000


def test_a_short_key_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys"
    path.write_text("0123456789abcdef\nsecret\n")
    assert len(read_keys(path)) == 2
    assert capsys.readouterr().err.count("key 2 has 6 characters, and may be guessed") == 1
