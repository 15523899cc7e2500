"""Only the conversation scrolls: whatever a user does, the header stays where it is."""

from collections.abc import Callable

import pytest
from selenium.webdriver.common.keys import Keys

from tests.chat.page.browser import DESKTOP, NARROW, Browser

pytestmark = pytest.mark.system

# Scrolls an element into view with all that is around it, as a browser does for the focus or a search in the page.
LAST_INTO_VIEW = "[...document.querySelectorAll('h3, dialog[open] *, .answer *')].at(-1)?.scrollIntoView()"
# Whether the header is at the top, is not covered but by a dialog or the sidebar, and nothing but the window scrolls.
HEADER_IS_SHOWN = """
const root = document.scrollingElement, header = document.querySelector("header").getBoundingClientRect();
const middle = document.elementFromPoint(innerWidth - 4, header.height / 2);
const covered = !middle.closest("header, dialog, #backdrop");
return header.top === 0 && !covered && root.scrollTop === 0 && root.scrollHeight <= innerHeight;
"""


@pytest.mark.parametrize("size", [DESKTOP, NARROW], ids=["wide", "narrow"])
def test_header_stays_visible(browser: Browser, size: tuple[int, int]) -> None:
    browser.open(size=size)
    shown: dict[str, bool] = {}

    def after(name: str, action: Callable[[], object]) -> None:
        action()
        browser.until(lambda: not browser.running)
        browser.js(LAST_INTO_VIEW)
        shown[name] = browser.js(HEADER_IS_SHOWN)

    def last(selector: str) -> None:
        browser.js("[...document.querySelectorAll(arguments[0])].at(-1).click()", selector)

    def attention() -> None:
        last("[data-key^=why]")
        browser.until(lambda: browser.texts(".attention table"))

    for text in ("你好", "今天天气真好", "long reply " * 150):
        after(f"ask {text[:4]}", lambda text=text: browser.ask(text))  # type: ignore[misc]
    browser.ask("今天天气真好")
    after("attention", attention)
    after("rating", lambda: last("[data-key^=good]"))
    after("retry", lambda: last("[data-key^=retry]"))
    after("edit", lambda: last("[data-key^=edit]"))
    after("cancel", lambda: browser.click("#cancel-editing"))
    after("long draft", lambda: browser.write("line\n" * 50))
    for button in ("settings-button", "shortcuts-button", "delete-all"):
        after(button, lambda button=button: last(f"#{button}"))  # type: ignore[misc]
        browser.press(Keys.ESCAPE)
    after("sidebar", lambda: last("#menu-open"))
    after("close", lambda: last("#menu-close"))
    after("compare", lambda: last("#compare"))
    after("two replies", lambda: browser.ask("你好"))
    browser.settings(n=3, search="sampling")
    after("list of replies", lambda: browser.ask("你好"))
    after("other conversation", lambda: last(".conversation-open"))
    assert [name for name, is_shown in shown.items() if not is_shown] == []
