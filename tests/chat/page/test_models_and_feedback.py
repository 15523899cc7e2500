"""Models, attention and ratings on the page in headless Chromium."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from starlette.types import Receive, Scope, Send

from chatbot.chat.server.app import create_app
from tests.chat.page.browser import Browser, Served
from tests.chat.page.fake_models import fake_server
from tests.chat.server.running import running

pytestmark = pytest.mark.system


def last_rating(path: Path) -> dict[str, Any]:
    """Return the last record of the file of ratings, without client and time."""
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    del record["client"], record["time"]
    return record


def test_card_of_the_model(browser: Browser) -> None:
    assert browser.texts("#card") == ["Trained on 1,098,275 question-answer pairs"]
    assert browser.texts("#empty-name") == ["Say something to a chatbot trained on weibo"]
    data, sure, memory = browser.texts("#facts dd")
    assert data == "1,098,275 question-answer pairs from weibo"
    assert "choose among about 48 equally likely ones" in sure
    assert memory == "Your message and the 2 previous messages"
    assert not browser.one("#technical").is_displayed()
    browser.click("summary")
    line = "Model weibo; weibo.conv.gz; checkpoint from step 12,400; 3.87 nats per character on the validation set"
    assert browser.one("#technical").text == line
    browser.choose("chatterbot")
    assert browser.texts("#facts dd")[1:] == [
        "Unknown, because the model was not tested on unseen questions.",
        "Only your current message",
    ]
    browser.ask("你好")
    browser.choose("weibo")
    browser.ask("今天天气真好")
    assert browser.replies == ["你好", "是啊，出去走走吧"]
    assert browser.served.engines["weibo"].questions[-1].history == ("你好", "你好")
    browser.reload()  # the last choice is kept
    assert browser.js("return document.getElementById('model').value") == "weibo"


def test_card_follows_a_newer_checkpoint(tmp_path: Path, chromium: webdriver.Chrome) -> None:
    """It changes with the next reply and when the page becomes visible. The server is behind a prefix."""
    models, engines = fake_server(tmp_path, names=["weibo"])
    ratings = tmp_path / "ratings.jsonl"
    app = create_app(models, ratings=ratings)

    async def behind_prefix(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            assert scope["path"].startswith("/our/chat")
            scope = {**scope, "path": scope["path"].removeprefix("/our/chat")}
        await app(scope, receive, send)

    def train(step: int) -> None:
        model = models.loaded["weibo"]
        newer = dataclasses.replace(model, card=dataclasses.replace(model.card, step=step), turns=1)
        models.put("weibo", newer)

    def shown_step() -> str:
        return browser.one("#card").get_attribute("title") or ""

    with running(behind_prefix) as address:
        browser = Browser(chromium, Served(f"{address}/our/chat", address, ratings, engines))
        browser.open()
        train(10_000)
        browser.reload()
        assert browser.texts("#facts dd")[-1] == "Your message and the previous one"
        train(20_000)
        browser.ask("你好")
        browser.until(lambda: "step 20,000" in shown_step())
        train(30_000)
        browser.js("document.dispatchEvent(new Event('visibilitychange'))")
        browser.until(lambda: "step 30,000" in shown_step())


def test_questions_to_try(browser: Browser) -> None:
    """They are training questions of the model."""
    assert browser.one("#questions").accessible_name == "Try a question from the training data"
    assert browser.texts("#questions button") == ["今天天气真好", "你好"]
    browser.choose("chatterbot")
    assert not browser.one("#try").is_displayed()
    browser.choose("weibo")
    browser.write("a draft")
    browser.click("#questions li:nth-child(2) button")
    browser.until(lambda: browser.replies == ["你好呀，今天过得怎么样？"] and not browser.running)
    assert browser.questions == ["你好"]
    assert browser.js("return document.activeElement.value") == "a draft"
    assert not browser.one("#empty").is_displayed()


def test_rating_of_a_reply_can_be_changed(browser: Browser) -> None:
    """A bad reply is not part of a history, because training also learns the replies in it."""

    def rate(rating: str, number: int, answer: str = "你好呀，今天过得怎么样？") -> dict[str, Any]:
        browser.click(f"[data-key={rating}-answer-{number}]")
        browser.until(lambda: answer in last_rating(browser.served.ratings).values())
        browser.until(lambda: last_rating(browser.served.ratings)["rating"] == rating)
        browser.until(lambda: browser.texts("#announcement") == ["Your rating was saved on the server."])
        return last_rating(browser.served.ratings)

    def lines() -> list[str]:
        return [line for line in browser.served.ratings.read_text(encoding="utf-8").splitlines() if line.strip()]

    browser.ask("今天天气真好")
    browser.ask("你好")
    expected = {
        "history": [["今天天气真好", "是啊，出去走走吧"]],
        "question": "你好",
        "model": "weibo",
    }  # without "written_to": no client without a key changes replies
    assert rate("good", 1) == {**expected, "answer": "你好呀，今天过得怎么样？", "rating": "good"}
    before = lines()
    assert browser.js("return document.activeElement.ariaPressed") == "true"
    browser.click("[data-key=good-answer-1]")  # it has this rating
    browser.reload()
    browser.click(".conversation-open")
    assert rate("bad", 1) == {**expected, "rejected": "你好呀，今天过得怎么样？", "rating": "bad"}
    assert lines()[:-1] == before[:-1]
    pressed = browser.all(".answer button[aria-pressed=true]")
    assert [button.get_attribute("data-key") for button in pressed] == ["bad-answer-1"]
    rate("bad", 0, "是啊，出去走走吧")
    assert rate("good", 1)["history"] == []
    browser.js("[...document.querySelectorAll('[data-key^=retry]')].at(-1).click()")
    browser.until(lambda: browser.texts(".versions > span") == ["2/2"] and not browser.running)
    assert len(browser.all(".answer [aria-pressed=true]")) == 1  # a rating belongs to its version
    browser.click("[data-key^=previous-reply]")
    assert len(browser.all(".answer [aria-pressed=true]")) == 2


def test_attention_over_the_words(browser: Browser) -> None:
    browser.ask("今天天气真好")
    browser.click("[data-key^=why]")
    browser.until(lambda: browser.texts(".attention table"))
    assert browser.texts(".attention thead th") == list("今天天气真好")
    assert browser.texts(".attention tbody th") == [*"是啊，出去走走吧", "end"]
    rows = [
        [int(text) for text in browser.texts(f".attention tbody tr:nth-child({number}) td")] for number in range(1, 10)
    ]
    assert rows[0][0] > 70
    assert all(97 <= sum(row) <= 103 for row in rows)  # rounded
    assert browser.one("[data-key^=why]").get_attribute("aria-expanded") == "true"
    browser.click("[data-key^=why]")
    assert browser.texts(".attention") == []
    browser.ask("x")
    browser.js("arguments[0].click()", browser.all("[data-key^=why]")[-1])
    shown = ["A person wrote this reply to: What is x?", "This model has no attention weights."]
    browser.until(lambda: browser.texts(".attention p") == shown)


def test_conversation_deleted_during_a_rating_stays_deleted(browser: Browser) -> None:
    browser.ask("你好")
    browser.js(
        "const sent = window.fetch; window.fetch = (url, options) => String(url).includes('ratings')"
        " ? new Promise((answer) => { window.answer = () => answer(sent(url, options)) }) : sent(url, options)"
    )
    browser.js("arguments[0].click()", browser.one("[data-key^=good]"))
    browser.js("arguments[0].click()", browser.one("[data-key^=delete_this]"))
    browser.click("#question-yes")
    browser.until(lambda: browser.texts(".conversation-open") == [])
    browser.js("window.answer()")
    browser.until(lambda: last_rating(browser.served.ratings)["question"] == "你好")
    browser.until(
        lambda: browser.one("#announcement").get_attribute("textContent") == "Your rating was saved on the server."
    )
    browser.reload()
    assert browser.texts(".conversation-open") == []
