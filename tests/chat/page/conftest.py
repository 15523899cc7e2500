"""A server with fake models, and a browser that shows its page."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from selenium import webdriver
from starlette.types import Receive, Scope, Send

from chatbot.chat.server.app import create_app
from chatbot.chat.server.state import Limits
from tests.chat.page.browser import Browser, Served
from tests.chat.page.fake_models import FakeServer, fake_server

KEY = "secret"
CHROMIUM_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
LIMIT = 30.0  # seconds for a server to start


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests, without and with a key."""
    folder = tmp_path_factory.mktemp("page")
    fake = fake_server(folder)
    with_key = fake_server(folder / "key", names=["weibo"])
    ratings = folder / "ratings.jsonl"
    limits = Limits(keys=[KEY.encode()])
    with_addresses = running(fake, Limits(), ratings), running(with_key, limits, ratings)
    (server, thread, address), (key_server, key_thread, key_address) = with_addresses
    yield Served(address, key_address, ratings, fake.engines)
    server.should_exit = key_server.should_exit = True
    thread.join()
    key_thread.join()


def running(
    fake: FakeServer, limits: Limits, ratings: Path, prefix: str = ""
) -> tuple[uvicorn.Server, threading.Thread, str]:
    """Start a server in a thread. prefix: of all paths, which a proxy would take away."""
    listener = socket.create_server(("127.0.0.1", 0))
    app = create_app(fake.models, limits, ratings=ratings)

    async def behind_prefix(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert scope["path"].startswith(prefix)
            scope = {**scope, "path": scope["path"].removeprefix(prefix)}
        await app(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(behind_prefix, ws="none", log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    end = time.monotonic() + LIMIT
    while not server.started:
        assert time.monotonic() < end
        time.sleep(0.01)
    return server, thread, f"http://127.0.0.1:{listener.getsockname()[1]}{prefix}"


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A headless browser with an empty profile."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("needs Chromium")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*CHROMIUM_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium: webdriver.Chrome, served: Served) -> Iterator[Browser]:
    """The page as a new user sees it, in English. At the end, the browser must have reported no error."""
    browser = Browser(chromium, served)
    browser.open()
    yield browser
    assert browser.errors() == []
