"""A server that needs a key: the dialog, links with a key, and the storage of the key."""

import pytest
from selenium.webdriver.common.keys import Keys

from tests.chat.page.browser import Browser
from tests.chat.page.conftest import KEY

pytestmark = pytest.mark.system


@pytest.fixture
def locked(browser: Browser) -> Browser:
    """Show the page of a server that needs a key to a user who has none."""
    browser.expect_error("401")
    browser.open(browser.served.key_address)
    return browser


def has_models(browser: Browser) -> bool:
    """Return whether the page has loaded the models and shows no dialog."""
    return browser.texts("#model option") == ["weibo"] and not browser.all("dialog[open]")


def kept(browser: Browser) -> list[str | None]:
    """Return the key of the tab and the remembered key."""
    return browser.js("return [sessionStorage, localStorage].map((s) => s.getItem('chatbot.key'))")


def test_key_dialog(locked: Browser) -> None:
    assert locked.texts("dialog[open] h2") == ["This server requires an API key"]
    assert locked.focused == "new-key"
    locked.press("密", Keys.ENTER)
    assert locked.texts("#key-error")[0].startswith("A key may contain only ASCII letters")
    locked.press("wrong", Keys.ENTER)  # in place of what was there
    locked.until(lambda: locked.texts("#key-error") == ["The server rejected this key."])
    assert locked.focused == "new-key"
    locked.press(Keys.ESCAPE)
    assert locked.notice == "The server requires a valid API key."
    locked.click("#notice button")
    locked.press(KEY, Keys.ENTER)
    locked.until(lambda: has_models(locked))
    assert locked.notice == ""
    assert kept(locked) == [KEY, None]
    locked.settings(key="")
    assert KEY not in str(kept(locked))
    locked.chromium.refresh()
    locked.until(lambda: locked.all("#key-dialog[open]"))
    locked.press(KEY)
    locked.click("#remember-key")
    locked.press(Keys.ENTER)
    locked.until(lambda: has_models(locked))
    locked.js("sessionStorage.clear()")  # as another tab
    locked.reload()
    assert has_models(locked)
    locked.ask("你好")
    assert locked.replies == ["你好呀，今天过得怎么样？"]
    for damaged in ('"密"', "7", "{"):
        locked.js("localStorage.setItem('chatbot.key', arguments[0])", damaged)
        locked.chromium.refresh()
        locked.until(lambda: locked.all("#key-dialog[open]"))
        assert locked.texts("#key-error") == [""]  # no key was sent


def test_link_with_a_key(locked: Browser) -> None:
    """The page can be open already or not. An invalid key is ignored."""
    for given, expected in (("%E5%AF%86", None), (KEY, KEY)):
        locked.chromium.get(f"{locked.served.key_address}/#key={given}")
        locked.until(lambda: locked.chromium.current_url == f"{locked.served.key_address}/")
        assert kept(locked) == [expected, None]
    locked.until(lambda: has_models(locked))
    locked.js("sessionStorage.clear()")
    locked.chromium.get("about:blank")
    locked.chromium.get(f"{locked.served.key_address}/#key={KEY}")
    locked.until(lambda: has_models(locked))
    assert kept(locked) == [KEY, None]
