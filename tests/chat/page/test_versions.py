"""Versions of replies and questions, running replies, and several tabs."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.chat.page.browser import Browser
from tests.chat.page.fake_models import SLOW

pytestmark = pytest.mark.system

STORED = "return Object.entries(localStorage).filter(([k]) => k.startsWith('chatbot.conversation.')).map(([, v]) => v)"
FAILING = """
const real = window.fetch;
window.fetch = async () => { window.fetch = real; return new Response('{"error": {}}', {status: 500}); };
"""


def places(browser: Browser) -> list[str]:
    """Return the shown version numbers of questions and replies."""
    return browser.texts(".versions > span")


def stored_texts(browser: Browser) -> list[list[str]]:
    """Return the questions and replies of each stored conversation, in all versions."""

    def text(node: dict[str, Any]) -> str:
        return node["question"] if "question" in node else node["answer"]["replies"][0]["text"]

    return [[text(node) for node in json.loads(value)["nodes"]] for value in browser.js(STORED)]


def last_click(browser: Browser, selector: str) -> None:
    """Click the last element that matches a selector, and wait for the reply."""
    browser.js("[...document.querySelectorAll(arguments[0])].at(-1).click()", selector)
    browser.until(lambda: not browser.running)


@contextlib.contextmanager
def second_tab(browser: Browser) -> Iterator[tuple[str, str]]:
    """Open the page in a second tab with the same storage. Yields both window handles."""
    first = browser.chromium.current_window_handle
    browser.chromium.switch_to.new_window("tab")
    second = browser.chromium.current_window_handle
    browser.chromium.get(browser.served.address)
    browser.until(lambda: browser.all("#model option"))
    try:
        yield first, second
    finally:
        browser.chromium.switch_to.window(second)
        browser.chromium.close()
        browser.chromium.switch_to.window(first)


def test_retry_gives_the_next_best_replies_as_versions(browser: Browser) -> None:
    browser.ask("你好")
    asked = browser.served.engines["weibo"].questions
    for number, text in enumerate(("你好！", "好久不见，最近忙什么呢"), 2):
        last_click(browser, "[data-key^=retry]")
        assert browser.replies == [text]
        assert places(browser) == [f"{number}/{number}"]
        assert (asked[-1].replies, asked[-1].decoding) == (number, None)  # the model's own search
    last_click(browser, "[data-key^=retry]")  # there are three
    assert browser.texts(".state")[0].startswith("No other reply was found.")
    assert asked[-1].decoding is not None
    assert asked[-1].decoding.temperature == 1  # samples were tried, too
    browser.click("[data-key^=previous-reply]")
    assert (browser.replies, places(browser)) == (["你好！"], ["2/3"])
    browser.reload()
    browser.click(".conversation-open")
    assert (browser.replies, places(browser)) == (["你好！"], ["2/3"])
    browser.ask("ok")
    assert asked[-1].history == ("你好", "你好！")
    browser.settings(search="sampling", seed=7)
    browser.js("document.getElementById('new').click()")
    browser.ask("你好")
    last_click(browser, "[data-key^=retry]")
    assert [question.seed for question in asked[-2:]] == [7, 8]
    assert browser.replies == ["你好！"]


@pytest.mark.parametrize("how", ["fails", "stopped"])
def test_failed_retry_keeps_the_reply(browser: Browser, how: str) -> None:
    browser.expect_error("500")
    browser.ask("你好")
    browser.ask("ok")
    before = browser.replies
    if how == "fails":
        browser.js(FAILING)
        browser.click("[data-key^=retry]")
    else:
        browser.js("window.fetch = (_, {signal}) => new Promise((_, no) => signal.onabort = () => no(signal.reason))")
        browser.click("[data-key^=retry]")
        browser.until(lambda: browser.running)
        assert stored_texts(browser) == [["你好", before[0], "ok", before[1]]]  # as if the page were closed now
        browser.press(Keys.ESCAPE)
    browser.until(lambda: not browser.running)
    assert browser.replies == before
    assert (places(browser), browser.texts(".state")) == ([], [])
    assert stored_texts(browser) == [["你好", before[0], "ok", before[1]]]
    if how == "fails":
        assert browser.notice.startswith("The server encountered an error")
        browser.click("#notice button")  # it is tried again
        browser.until(lambda: places(browser) == ["2/2"])
        assert browser.replies == ["你好！"]


def test_edited_question_keeps_the_old_branch(browser: Browser) -> None:
    for text in ("one", "two", "three"):
        browser.ask(text)
    browser.write("a draft")
    browser.js("document.querySelector('[data-key=edit-1]').click()")
    assert browser.js("return document.getElementById('message').value") == "two"
    assert browser.texts(".bubble.edited") == ["two"]
    browser.write("zwei")
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.questions == ["one", "zwei"] and not browser.running)
    assert browser.served.engines["weibo"].questions[-1].history == ("one", "one")
    assert browser.js("return document.getElementById('message').value") == "a draft"
    assert places(browser) == ["2/2"]
    browser.reload()
    browser.click(".conversation-open")
    browser.click("[data-key=previous-question-1]")
    assert (browser.questions, places(browser)) == (["one", "two", "three"], ["1/2"])
    assert browser.js("return document.activeElement.dataset.key") == "previous-question-1"
    last_click(browser, "[data-key=next-question-1]")
    assert browser.questions == ["one", "zwei"]


def test_reply_is_added_to_its_own_conversation(browser: Browser) -> None:
    """Another conversation can be opened and used while a reply is running."""
    browser.ask(SLOW, wait=False)
    browser.until(lambda: len(browser.replies[0]) > 10)
    browser.js("document.getElementById('new').click()")
    assert (browser.running, browser.texts(".conversation .busy")) == (False, [""])
    browser.ask("你好")
    assert browser.replies == ["你好呀，今天过得怎么样？"]
    browser.js("[...document.querySelectorAll('.conversation-open')].at(-1).click()")
    assert browser.questions == [SLOW]
    assert browser.running
    length = len(browser.replies[0])
    browser.until(lambda: len(browser.replies[0]) > length)
    browser.click("#stop")
    browser.until(lambda: not browser.running)
    assert sorted(texts[0] for texts in stored_texts(browser)) == sorted([SLOW, "你好"])


def test_each_tab_asks_for_itself(browser: Browser) -> None:
    """Each tab gets the best reply first, and another one if it repeats the question."""
    repeats = []
    browser.ask("for myself")
    repeats.append(browser.served.engines["weibo"].questions[-1].repeats)
    with second_tab(browser):
        for _ in range(2):
            browser.js("document.getElementById('new').click()")
            browser.ask("for myself")
            repeats.append(browser.served.engines["weibo"].questions[-1].repeats)
    assert repeats == [0, 0, 1]


def test_tabs_that_write_at_once_lose_nothing(browser: Browser) -> None:
    """Each tab shows the changes and deletions of the other."""
    browser.ask("one")
    with second_tab(browser) as (first, second):
        browser.click(".conversation-open")
        browser.ask("two")
        browser.chromium.switch_to.window(first)
        browser.until(lambda: browser.questions == ["one", "two"])
        browser.ask(SLOW, wait=False)  # is stored at its end
        browser.chromium.switch_to.window(second)
        browser.js("[...document.querySelectorAll('[data-key^=edit]')][0].click()")
        browser.write("eins")
        browser.press(Keys.ENTER)
        browser.until(lambda: "eins" in browser.questions and not browser.running)
        browser.chromium.switch_to.window(first)
        browser.until(lambda: len(browser.replies[-1]) > 10)
        browser.click("#stop")
        browser.until(lambda: not browser.running)
        (texts,) = stored_texts(browser)
        assert {"one", "two", "eins", SLOW} <= {*texts}
        assert any(text.startswith("again") for text in texts)
        browser.chromium.switch_to.window(second)
        browser.click("#delete-all")
        browser.click("#question-yes")
        browser.until(lambda: browser.js(STORED) == [])  # a hidden tab has no frames, and dialogs close with a frame
        browser.chromium.switch_to.window(first)
        browser.until(lambda: browser.questions == [])
