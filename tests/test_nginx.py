"""deploy/nginx.conf in a real nginx on loopback, in front of the server of the API."""

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from chatbot.chat.page import page_files
from chatbot.chat.server.app import create_app
from chatbot.chat.server.connection import server_config
from chatbot.chat.server.gate import MAX_BODY_BYTES
from chatbot.chat.server.state import Limits
from chatbot.inference.request import Piece, Question, Receive, Request, Usage
from tests.chat.server.fake_models import FakeEngine, fake_models

SITE = (Path(__file__).parents[1] / "deploy" / "nginx.conf").read_text(encoding="utf-8")
CERTIFICATE = "/etc/letsencrypt/live/chat.example.org/"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(NGINX is None or shutil.which("openssl") is None, reason="needs nginx and openssl"),
]

MAIN = """
{user}
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""
HELLO = {"model": "a", "stream": True, "messages": [{"role": "user", "content": "你好"}]}


class HeldEngine(FakeEngine):
    """An engine whose replies the test makes, after their first piece, without which a stream does not begin."""

    receive: Receive

    def submit(self, question: Question, receive: Receive) -> Request:
        self.requests.append(Request(question, receive))
        self.receive = receive
        receive(Piece(0, "你"))
        return self.requests[-1]


class Proxied:
    """A running server and the nginx in front of it."""

    def __init__(self, https: int, http: int, engine: HeldEngine, scopes: list[Any]) -> None:
        self.https, self.http, self.engine, self.scopes = https, http, engine, scopes

    def client(self, address: str = "127.0.0.1") -> httpx.Client:
        """A client at an address of this machine; nginx counts requests by it."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        transport = httpx.HTTPTransport(verify=context, local_address=address)
        return httpx.Client(transport=transport, base_url=f"https://127.0.0.1:{self.https}", timeout=240)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.contextmanager
def nginx(folder: Path, upstream: int) -> Iterator[tuple[int, int]]:
    """Yield the ports of an nginx, HTTPS and HTTP, whose server is at a port of this machine."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{folder}/privkey.pem"]
    subject = ["-subj", "/CN=chat.example.org", "-out", f"{folder}/fullchain.pem"]
    subprocess.run(["openssl", "req", "-x509", *key, *subject], check=True, capture_output=True)
    https, http = free_port(), free_port()
    site = "\n".join(line for line in SITE.splitlines() if "listen [::]" not in line)
    for old, new in {
        "listen 443": f"listen 127.0.0.1:{https}",
        "listen 80": f"listen 127.0.0.1:{http}",
        "127.0.0.1:8000": f"127.0.0.1:{upstream}",
        CERTIFICATE: f"{folder}/",
    }.items():
        assert old in site
        site = site.replace(old, new)
    (folder / "site.conf").write_text(site, encoding="utf-8")
    user = "user root;" if os.geteuid() == 0 else ""  # of the files, which only their owner may read
    (folder / "main.conf").write_text(MAIN.format(user=user, folder=folder), encoding="utf-8")
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-p", str(folder), "-c", f"{folder}/main.conf", "-e", f"{folder}/error.log"])
    try:
        for _ in range(4800):
            assert process.poll() is None, (folder / "error.log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", https), timeout=5):
                break
            time.sleep(0.05)
        yield https, http
    finally:
        process.terminate()
        process.wait(240)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("nginx")
    engine, scopes = HeldEngine(), []
    app = create_app(fake_models({"a": engine}, folder), Limits(hosts={"localhost"}))

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        scopes.append(scope)
        await app(scope, receive, send)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(server_config(noting, 20, trusted_proxies=["127.0.0.1"]))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        with nginx(folder, listener.getsockname()[1]) as (https, http):
            yield Proxied(https, http, engine, scopes)
        server.should_exit = True
        thread.join()


def test_pieces_of_a_stream_arrive_one_by_one(proxied: Proxied) -> None:
    engine = proxied.engine
    headers = {"X-Forwarded-For": "1.2.3.4", "Accept-Encoding": "gzip"}
    with (
        proxied.client() as client,
        client.stream("POST", "/v1/chat/completions", json=HELLO, headers=headers) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in response.headers
        lines = (line for line in response.iter_lines() if line)
        next(lines)  # the role
        for text, following in (("你", "好"), ("好", "呀"), ("呀", "！")):
            assert json.loads(next(lines).removeprefix("data: "))["choices"][0]["delta"] == {"content": text}
            engine.receive(Piece(0, following))
        engine.receive(Piece(0, "", finish_reason="stop"))
        engine.receive(Usage(1, 3))
        assert list(lines)[-1] == "data: [DONE]"
    scope = proxied.scopes[-1]
    given = dict(scope["headers"])
    assert (given[b"x-forwarded-for"], given[b"x-forwarded-proto"]) == (b"127.0.0.1", b"https")
    assert (scope["client"][0], scope["scheme"], scope["http_version"]) == ("127.0.0.1", "https", "1.1")


def test_a_client_that_leaves_cancels_its_reply(proxied: Proxied) -> None:
    engine = proxied.engine
    with proxied.client() as client, client.stream("POST", "/v1/chat/completions", json=HELLO) as response:
        lines = response.iter_lines()  # kept: a generator that is discarded closes the response
        next(lines)
        assert not engine.requests[-1].cancelled.is_set()
    assert engine.requests[-1].cancelled.wait(240)


def test_large_bodies_are_refused_before_the_server(proxied: Proxied) -> None:
    before = len(proxied.scopes)
    with proxied.client() as client:
        response = client.post("/v1/chat/completions", content=b" " * (MAX_BODY_BYTES + 1))
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        assert len(proxied.scopes) == before
        response = client.post("/v1/chat/completions", content=b" " * MAX_BODY_BYTES)
        assert response.json()["error"]["code"] != "body_too_large"
    assert [scope["path"] for scope in proxied.scopes[before:]] == ["/v1/chat/completions"]


def test_the_page_is_loaded_at_once_and_metrics_and_http_are_closed(proxied: Proxied) -> None:
    """The page with all its files, and again after it was closed; they are no requests to the API."""
    paths = page_files().keys() - {""}
    with proxied.client("127.0.0.7") as client:
        responses = [client.get(f"/{path}") for path in ["", *paths, "", *paths]]
        assert client.get("/metrics").status_code == 404
    assert {response.status_code for response in responses} == {200}
    assert {response.headers["content-encoding"] for response in responses} == {"gzip"}
    response = httpx.get(f"http://127.0.0.1:{proxied.http}/a?b=c")
    assert (response.status_code, response.headers["location"]) == (301, "https://chat.example.org/a?b=c")


def test_too_many_requests_of_an_address_are_refused(proxied: Proxied) -> None:
    with proxied.client("127.0.0.2") as client:
        responses = [client.get("/health") for _ in range(40)]
    statuses = [response.status_code for response in responses]
    assert statuses[:20] == [200] * 20
    assert 429 in statuses
    refused = responses[statuses.index(429)]
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert refused.headers["retry-after"] == "1"
    with proxied.client("127.0.0.3") as client:
        assert client.get("/health").status_code == 200


def test_a_server_that_is_down_is_status_502(tmp_path: Path) -> None:
    with nginx(tmp_path, free_port()) as (https, _), Proxied(https, 0, HeldEngine(), []).client() as client:
        response = client.post("/v1/chat/completions", json=HELLO)
    assert response.status_code == 502
    assert response.headers["content-type"] == "application/json"
    assert response.headers["retry-after"] == "10"
    assert "does not answer" in response.json()["error"]["message"]
