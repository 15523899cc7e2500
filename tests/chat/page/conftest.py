"""A server with fake models, and a browser that shows its page."""

import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver

from chatbot.chat.server.app import create_app
from chatbot.chat.server.state import Limits
from tests.chat.page.browser import Browser, Served
from tests.chat.page.fake_models import fake_server
from tests.chat.server.running import running

KEY = "secret"
CHROMIUM_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests, without and with a key."""
    folder = tmp_path_factory.mktemp("page")
    models, engines = fake_server(folder)
    (folder / "key").mkdir()
    with_key, _ = fake_server(folder / "key", names=["weibo"])
    ratings, limits = folder / "ratings.jsonl", Limits(keys=[KEY.encode()])
    with (
        running(create_app(models, ratings=ratings)) as address,
        running(create_app(with_key, limits, ratings=ratings)) as key_address,
    ):
        yield Served(address, key_address, ratings, engines)


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
    """Show the page to a new user, in English. At the end, check that the browser has reported no errors."""
    browser = Browser(chromium, served)
    browser.open()
    yield browser
    assert browser.errors() == []


@pytest.fixture
def bare(chromium: webdriver.Chrome, served: Served) -> Iterator[webdriver.Chrome]:
    """Show a document of the server without the page."""
    chromium.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    chromium.get(f"{served.address}/health")
    yield chromium
    chromium.execute_cdp_cmd("Page.setBypassCSP", {"enabled": False})
    chromium.get_log("browser")  # that the server has no icon
