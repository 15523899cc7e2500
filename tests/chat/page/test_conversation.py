"""Conversations on the page in headless Chromium, with the real server and fake models."""

import json
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from chatbot.chat.server.page_routes import MAX_TEXT_CHARACTERS
from tests.chat.page.browser import PHONE, Browser
from tests.chat.page.fake_models import BUSY, EMPTY, SLOW

pytestmark = pytest.mark.system

HOSTILE = [
    "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>",
    "${document.title='broken'} {{7*7}} &lt;b&gt; \\u003cscript\\u003e javascript:alert(1)",
    "abc\u202egnp.exe",
    "مرحبا بالعالم hello",
    "👨‍👩‍👧‍👦🏳️‍🌈" * 20,
    "a\u0000b\u0007c\u001b[31md\u007f\u0085\ud800e",
    "一" * 10_000,
    "x" * 10_000,
    "__proto__",
]


def test_reply_is_streamed_and_kept(browser: Browser) -> None:
    browser.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.ask("你好")
    assert browser.replies == ["你好呀，今天过得怎么样？"]
    assert browser.texts("#announcement") == ["你好呀，今天过得怎么样？"]  # for a screen reader, when it is complete
    browser.click("[data-key^=copy]")
    browser.until(lambda: browser.texts("#announcement") == ["Copied to the clipboard."])
    read = "navigator.clipboard.readText().then(arguments[0])"
    assert browser.chromium.execute_async_script(read) == "你好呀，今天过得怎么样？"
    browser.ask("今天天气真好")
    asked = browser.served.engines["weibo"].questions[-1]
    assert asked.history == ("你好", "你好呀，今天过得怎么样？")
    assert asked.decoding is None  # the model's own search
    browser.reload()
    assert browser.texts(".conversation-open") == ["你好"]
    browser.click(".conversation-open")
    assert browser.questions == ["你好", "今天天气真好"]


def test_stop_keeps_what_has_arrived(browser: Browser) -> None:
    for number, stop in enumerate((lambda: browser.click("#stop"), lambda: browser.press(Keys.ESCAPE)), 1):
        browser.ask(SLOW, wait=False)
        browser.until(lambda: len(browser.replies[-1]) > 10)
        stop()
        browser.until(lambda: not browser.running)
        assert browser.replies[-1].startswith("again again ")
        assert browser.texts(".state") == ["Stopped."] * number
        assert browser.focused == "message"
    browser.ask("你好")
    assert browser.replies[-1] == "你好呀，今天过得怎么样？"


def test_keys_of_the_message_field_and_of_editing(browser: Browser) -> None:
    browser.write("one")
    browser.press_with(Keys.SHIFT, Keys.ENTER)
    browser.press("two")
    composing = "return !document.activeElement.dispatchEvent(new KeyboardEvent('keydown', arguments[0]))"
    for fields in ({"isComposing": True}, {"keyCode": 229}):  # Enter ends the composition of Chinese characters
        assert not browser.js(composing, {"key": "Enter", "bubbles": True, "cancelable": True, **fields})
    assert browser.questions == []
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.questions == ["one\ntwo"])
    browser.until(lambda: not browser.running)
    browser.press(Keys.ENTER)  # an empty message
    assert browser.questions == ["one\ntwo"]
    for cancel in (lambda: browser.click("#cancel-editing"), lambda: browser.press(Keys.ESCAPE)):
        assert not browser.one("#editing").is_displayed()
        browser.press(Keys.ARROW_UP)
        assert browser.js("return document.getElementById('message').value") == "one\ntwo"
        assert browser.one("#editing p").text.startswith("You are editing a question")
        cancel()
        assert not browser.one("#editing").is_displayed()
        assert (browser.focused, browser.js("return document.getElementById('message').value")) == ("message", "")
    browser.ask("new")
    assert browser.questions == ["one\ntwo", "new"]


def test_message_too_long(browser: Browser) -> None:
    browser.open(size=PHONE)
    browser.write("😀" * MAX_TEXT_CHARACTERS)  # as many characters as the server counts
    assert browser.one("#send").is_enabled()
    browser.js("document.execCommand('insertText', false, 'more')")  # as pasting does
    line = "This message has 20,004 characters, but the server accepts at most 20,000. Shorten the message to send it."
    assert browser.one("#hint").text == line
    assert browser.texts("#announcement") == [line]
    assert not browser.one("#send").is_enabled()
    browser.press(Keys.ENTER)
    assert browser.questions == []
    browser.ask("short")
    assert browser.texts("#hint") == ["Press Enter to send, or Shift+Enter for a new line."]


def test_n_best_replies_with_scores(browser: Browser) -> None:
    browser.settings(search="sampling", temperature=0.5, seed=7, n=3, max_tokens=9, top_p=0.9)
    browser.ask("你好")
    asked = browser.served.engines["weibo"].questions[-1]
    assert asked.decoding is not None
    assert (asked.decoding.temperature, asked.decoding.top_p, asked.seed) == (0.5, 0.9, 7)
    assert (asked.decoding.min_p, asked.replies, asked.max_tokens) == (None, 3, 9)
    assert browser.replies == ["你好呀，今天过得怎么样？", "你好！", "好久不见，最近忙什么呢"]
    assert browser.texts(".score") == ["−0.50", "−0.75", "−1.00"]
    browser.click(".choice-row:nth-of-type(2)")
    assert browser.js("return document.activeElement.dataset.key") == "choice-0-1"
    browser.ask("ok")
    assert browser.served.engines["weibo"].questions[-1].history == ("你好", "你好！")


def test_conversations_are_renamed_and_deleted(browser: Browser) -> None:
    for text in ("one", "two", "three"):
        browser.ask(text)
        browser.press_with(Keys.ALT, "n")
    assert browser.texts(".conversation-open") == ["three", "two", "one"]
    browser.js("arguments[0].click()", browser.one("[data-key^=rename_this]"))
    browser.press("第三\u202e个", Keys.ENTER)
    browser.until(lambda: browser.texts(".conversation-open")[0] == "第三 个")
    browser.js("arguments[0].click()", browser.one("[data-key^=delete_this]"))
    assert "第三 个" in browser.texts("#question-text")[0]
    browser.press(Keys.ESCAPE)
    assert len(browser.texts(".conversation-open")) == 3
    browser.js("arguments[0].click()", browser.one("[data-key^=delete_this]"))
    browser.click("#question-yes")
    browser.until(lambda: browser.texts(".conversation-open") == ["two", "one"])
    browser.click("#delete-all")
    browser.click("#question-yes")
    browser.until(lambda: browser.texts(".conversation-open") == [])
    browser.reload()
    assert browser.texts(".conversation-open") == []


def test_export_and_import(browser: Browser, tmp_path: Path) -> None:
    browser.ask("你好")
    browser.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.click("#export")
    path = tmp_path / "chatbot-conversations.json"
    browser.until(path.exists)
    content = json.loads(path.read_text(encoding="utf-8"))
    (conversation,) = content["conversations"]
    browser.click("#delete-all")
    assert browser.texts("#question-text")[0].startswith("Delete the only conversation? ")
    browser.press(Keys.ESCAPE)
    assert conversation["nodes"][1]["answer"]["replies"][0]["text"] == "你好呀，今天过得怎么样？"
    browser.open()
    browser.one("#import-file").send_keys(str(path))
    browser.until(lambda: browser.texts(".conversation-open") == ["你好"])
    assert browser.texts("#announcement") == ["Imported one conversation."]
    browser.click(".conversation-open")
    assert browser.replies == ["你好呀，今天过得怎么样？"]
    other = {**conversation["nodes"][1]["answer"], "model": "chatterbot"}
    for node in conversation["nodes"][1:]:
        node["answers"] = [node.pop("answer"), other]
    models = [conversation.pop("model"), "chatterbot"]
    earlier = {**conversation, "id": "0" * 16, "title": "earlier", "models": models}
    path.write_text(json.dumps({**content, "version": 2, "conversations": [earlier]}), encoding="utf-8")
    browser.one("#import-file").send_keys(str(path))
    browser.until(lambda: browser.texts(".conversation-open") == ["你好", "earlier"])
    browser.js("[...document.querySelectorAll('.conversation-open')].at(-1).click()")
    assert browser.replies == ["你好呀，今天过得怎么样？"]  # of the first of two models
    for number, bad in enumerate(["", "[]", "{}", '{"format": "chatbot-conversations", "conversations": [{"id": 1}]}']):
        wrong = tmp_path / f"{number}.json"
        wrong.write_text(bad, encoding="utf-8")
        browser.js("document.getElementById('notice').replaceChildren()")
        browser.one("#import-file").send_keys(str(wrong))
        browser.until(lambda: "no conversations" in browser.notice)
    assert browser.texts(".conversation-open") == ["你好", "earlier"]


def test_hostile_text_stays_text(browser: Browser) -> None:
    title = browser.js("return document.title")
    for text in HOSTILE:
        browser.js("document.getElementById('new').click()")
        browser.ask(text)
        shown = browser.js("return document.querySelector('.bubble').textContent")
        assert shown == text.replace("\ud800", "\ufffd")
        assert browser.js("return document.title") == title
        assert browser.js("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.js("return document.querySelectorAll('#main img, #main script, .sidebar script').length") == 0
    browser.reload()
    assert len(browser.texts(".conversation-open")) == len(HOSTILE)
    assert not any("\u202e" in text or "\x1b" in text for text in browser.texts(".conversation-open"))


def test_long_conversation_is_cut_to_what_a_server_takes(browser: Browser) -> None:
    browser.ask("short")
    browser.ask("一" * 3000)
    browser.js(
        "const key = Object.keys(localStorage).find(k => k.includes('conversation.'));"
        "const c = JSON.parse(localStorage.getItem(key)), [q, r, ...long] = c.nodes;"
        "const id = (i) => i.toString(16).padStart(16, '0'), parent = (i) => (i ? id(i - 1) : r.id);"
        "const added = [...Array(600).keys()].map((i) => ({...(i % 2 ? r : q), id: id(i), parent: parent(i)}));"
        "long[0].parent = id(599); c.nodes = [q, r, ...added, ...long]; localStorage.setItem(key, JSON.stringify(c))"
    )
    browser.reload()
    browser.click(".conversation-open")
    assert len(browser.questions) == 200  # the last ones are shown
    browser.write("你好")
    browser.press(Keys.ENTER)
    browser.until(lambda: browser.replies[-1] == "你好呀，今天过得怎么样？" and not browser.running)
    assert browser.served.engines["weibo"].questions[-1].history == ("一" * 2000,) * 2


def test_unusual_replies_are_explained(browser: Browser) -> None:
    browser.expect_error("429")
    browser.ask(EMPTY)
    assert browser.texts(".state") == ["The model returned an empty reply."]
    browser.ask(f"{'长' * 1000}你好")
    cut = f"The message is too long for this model, which read only: {'长' * 998}你好"
    browser.until(lambda: browser.texts(".state")[1:] == [cut])
    browser.reload()
    browser.click(".conversation-open")
    assert len(browser.texts(".state")) == 2
    browser.ask(BUSY)
    assert browser.notice == "The server is busy. Try again in 1 s."
    browser.ask("你好")
    assert browser.notice == ""
    assert browser.replies[-1] == "你好呀，今天过得怎么样？"
    browser.js(
        "const error = {code: 'rate_limit_exceeded', message: ''};"
        "window.fetch = async () => new Response(JSON.stringify({error}), {status: 429, headers: {'Retry-After': '9'}})"
    )
    browser.ask("你好")
    assert browser.notice == "You have sent too many requests. Try again in 9 s."
    browser.cdp("Emulation.setDeviceMetricsOverride", width=320, height=640, deviceScaleFactor=1, mobile=False)
    retry, dismiss = browser.all("#notice button")
    assert retry.rect["y"] == dismiss.rect["y"]


def test_lost_network(browser: Browser) -> None:
    browser.expect_error("ERR_INTERNET_DISCONNECTED")
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.cdp("Network.enable")
    browser.cdp("Network.emulateNetworkConditions", offline=True, **network)
    browser.ask("你好")
    assert browser.notice.startswith("Cannot reach the server.")
    assert browser.texts(".state") == ["The reply could not be generated."]
    assert browser.one("[data-key^=retry]").get_attribute("title") == "Try again"
    assert browser.texts("#notice button") == ["Try again", "Dismiss"]
    browser.cdp("Network.emulateNetworkConditions", offline=False, **network)
    browser.click("#notice button")
    browser.until(lambda: browser.replies == ["你好呀，今天过得怎么样？"] and not browser.running)
    assert browser.one("[data-key^=retry]").get_attribute("title") == "Another reply"
    assert browser.texts(".versions > span") == []  # it took the place of the one that failed


def test_missing_model(browser: Browser) -> None:
    browser.expect_error("404")
    browser.ask("你好")
    browser.js(
        "const key = Object.keys(localStorage).find(k => k.includes('conversation.'));"
        "localStorage.setItem(key, localStorage.getItem(key).replaceAll('weibo', 'gone'))"
    )
    browser.reload()
    browser.click(".conversation-open")
    assert "gone (not on the server)" in browser.texts("#model option")
    browser.ask("again")
    assert browser.texts(".state") == ["The reply could not be generated."]
    assert browser.notice == "The model gone is no longer available. Choose another model."
    browser.choose("weibo")
    browser.ask("你好")
    assert browser.replies[-1] == "你好呀，今天过得怎么样？"


def test_damaged_or_full_storage(browser: Browser) -> None:
    """Orphaned and circular nodes are left out, and so are values of another form."""
    browser.ask("one")
    (key,) = browser.js("return Object.keys(localStorage).filter(k => k.includes('conversation.'))")
    conversation = json.loads(browser.js("return localStorage.getItem(arguments[0])", key))
    question, reply = conversation["nodes"]
    circle = [{**question, "id": "a" * 16, "parent": "b" * 16}, {**reply, "id": "b" * 16, "parent": "a" * 16}]
    orphan = {**reply, "id": "c" * 16, "parent": "d" * 16}
    wrong = [None, 1, {**question, "id": "x"}, {**reply, "id": "e" * 16, "answer": []}, {**question, "parent": []}]
    conversation["nodes"] += [*circle, orphan, *wrong]
    conversation["leaf"] = "b" * 16
    stored = {
        key: json.dumps(conversation),
        "chatbot.conversation.1": "{",
        "chatbot.conversation.2": '{"id": "0123456789abcdef", "turns": [1]}',
        "chatbot.model": "[{}]",
        "chatbot.settings": '{"language": "en", "n": "x", "theme": 7, "search": {}}',
    }
    for item in stored.items():
        browser.js("localStorage.setItem(...arguments)", *item)
    browser.reload()
    assert browser.texts(".conversation-open") == ["one"]
    browser.click(".conversation-open")
    assert (browser.questions, browser.replies) == (["one"], ["one"])
    browser.js("Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError') }")
    browser.ask("你好")
    assert browser.replies[-1] == "你好呀，今天过得怎么样？"
    assert "storage is full" in browser.notice
