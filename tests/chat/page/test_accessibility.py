"""Accessibility of the page: keyboard, screen reader, small screens, contrast."""

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.chat.page.browser import NARROW, Browser

pytestmark = pytest.mark.system

FAULTS = Path(__file__).with_name("faults.js").read_text(encoding="utf-8")
SCROLLERS = "[document.documentElement, document.getElementById('scroll')]"


def faults(browser: Browser) -> list[Any]:
    """Return the faults of the page in its current state: contrast, names, and the position of the header."""
    left = ["the header"] if header_has_left(browser) else []
    return [*browser.js(f"{FAULTS} return [...lowContrast(), ...unnamed()]"), *left]


def header_has_left(browser: Browser) -> bool:
    return browser.js(f"{FAULTS} return headerHasLeft()")


def full_page(browser: Browser, **settings: Any) -> None:
    """Show the page with all its parts at once."""
    browser.open(n=2, **settings)
    browser.ask("今天天气真好")
    browser.click("[data-key^=good]")
    browser.js("document.querySelector('[data-key^=why]').click()")
    browser.until(lambda: browser.texts(".attention table"))
    browser.js("document.getElementById('new').click()")
    browser.settings(n=1)
    browser.ask("你好")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_names_and_header(browser: Browser, theme: str) -> None:
    browser.open(theme=theme)
    states = [faults(browser)]
    full_page(browser, theme=theme, language="zh")
    states.append(faults(browser))
    browser.click(".conversation:nth-child(2) .conversation-open")
    assert browser.texts(".attention table")  # is still open
    states.append(faults(browser))
    for dialog in ("settings-button", "shortcuts-button", "delete-all"):
        browser.js("document.getElementById(arguments[0]).click()", dialog)
        states.append(faults(browser))
        browser.press(Keys.ESCAPE)
    browser.expect_error("401")
    browser.open(browser.served.key_address, theme=theme)
    browser.press("wrong", Keys.ENTER)
    browser.until(lambda: browser.texts("#key-error") != [""])
    assert [*states, faults(browser)] == [[]] * 7


def test_landmarks_and_order_of_the_focus(browser: Browser) -> None:
    browser.ask("你好")
    assert browser.js("return document.documentElement.lang") == "en"
    for selector in ("main", "header", "nav[aria-label]", "h1", "[role=status][aria-live=polite]", "main [role=alert]"):
        assert len(browser.all(selector)) == 1, selector
    assert browser.texts("h1") == ["你好"]
    assert browser.texts("#turns h3") == ["You", "weibo"]
    browser.js("document.querySelector('.skip').focus()")
    order = [browser.focused]
    for _ in range(20):
        browser.press(Keys.TAB)
        order.append(browser.focused)
    wanted = ["Skip to the message field", "New conversation", "你好", 'Rename "你好"', 'Delete "你好"', "Export"]
    assert order[: len(wanted)] == wanted
    places = [
        order.index(name) for name in ("Model", "Settings", "Messages", "Edit this question", "Copy", "Another reply")
    ]
    assert places == sorted(places)
    browser.js("document.querySelector('.skip').focus()")
    browser.press(Keys.ENTER)
    assert browser.focused == "message"
    browser.js("document.getElementById('model').focus({ focusVisible: true })")
    ring = browser.js(
        "const select = document.getElementById('model'), { outlineOffset, outlineWidth } = getComputedStyle(select);"
        "return select.getBoundingClientRect().bottom + parseFloat(outlineOffset) + parseFloat(outlineWidth)"
    )  # leaves the card readable
    assert ring <= browser.js("return document.getElementById('card').getBoundingClientRect().top")


def test_keyboard_shortcuts_and_dialogs_return_the_focus(browser: Browser) -> None:
    browser.press_with(Keys.ALT, "k")
    assert browser.texts("#shortcuts[open] kbd")[:3] == ["Enter", "Shift", "Enter"]
    browser.press(Keys.ESCAPE)
    assert browser.focused == "message"
    browser.press_with(Keys.ALT, "s")
    assert browser.all("#settings[open]")
    browser.press(Keys.ESCAPE)
    assert browser.focused == "message"
    browser.ask("你好")
    browser.press_with(Keys.ALT, "r")
    browser.until(lambda: browser.replies == ["你好！"] and not browser.running)
    browser.press_with(Keys.ALT, "n")
    assert browser.questions == []


ALT, CONTROL = 1, 2  # modifiers, as the DevTools protocol has them


@pytest.mark.parametrize(
    ("platform", "modifiers", "acts", "typed"),
    [
        ("Linux x86_64", ALT, True, ""),
        ("Win32", ALT | CONTROL, False, ""),  # AltGr
        ("MacIntel", ALT, False, "ß"),
        ("MacIntel", ALT | CONTROL, True, ""),
    ],
)
def test_keys_that_type_a_character_are_not_shortcuts(
    browser: Browser, platform: str, modifiers: int, acts: bool, typed: str
) -> None:
    """Option on a Mac, and AltGr elsewhere, type characters. The page shows the shortcuts of the platform."""
    agent, is_mac = browser.js("return navigator.userAgent"), platform == "MacIntel"
    browser.cdp("Emulation.setUserAgentOverride", userAgent=agent, platform=platform)
    browser.reload()
    browser.write("")
    pressed = {"type": "keyDown", "text": typed} if typed else {"type": "rawKeyDown"}
    for kind in (pressed, {"type": "keyUp"}):
        browser.cdp("Input.dispatchKeyEvent", **kind, code="KeyS", key="ß", modifiers=modifiers)
    assert bool(browser.all("#settings[open]")) == acts
    assert browser.js("return document.getElementById('message').value") == typed
    browser.press(Keys.ESCAPE)
    modifier = f"altKey: true, ctrlKey: {str(is_mac).lower()}, bubbles: true, code: 'KeyS'"
    for other in ("isComposing", "metaKey") if is_mac else ("isComposing", "metaKey", "modifierAltGraph"):
        key = f"new KeyboardEvent('keydown', {{{modifier}, {other}: true}})"
        browser.js(f"document.getElementById('message').dispatchEvent({key})")
    assert not browser.all("dialog[open]")
    assert browser.texts("#shortcuts div:last-child kbd") == [*(["Control", "Option"] if is_mac else ["Alt"]), "K"]
    browser.cdp("Emulation.setUserAgentOverride", userAgent="")


def test_small_screens(browser: Browser) -> None:
    for height in (480, 640, 720):  # of which some leave little of the page below its lower edge
        browser.open(size=(NARROW[0], height))
        assert browser.js(f"return {SCROLLERS}.map((e) => [e.scrollTop, e.scrollLeft])") == [[0, 0], [0, 0]], height
        assert browser.js(f"return {SCROLLERS}.filter((e) => e.scrollWidth > innerWidth)") == []
    assert not browser.one("#sidebar").is_displayed()
    full_page(browser, size=NARROW)
    assert browser.js("return document.documentElement.scrollWidth") == NARROW[0]
    assert browser.js(f"{FAULTS} return misplaced()") == []
    browser.click("#menu-open")
    assert browser.focused == "Hide conversations"
    browser.press(Keys.ESCAPE)
    assert browser.focused == "Show conversations"
    browser.until(lambda: not browser.one("#sidebar").is_displayed())
    browser.click("#menu-open")
    browser.until(lambda: browser.one("#sidebar").rect["x"] == 0)
    browser.click(".conversation:nth-child(2) .conversation-open")
    assert browser.questions == ["今天天气真好"]
    browser.ask("long reply " * 150)
    assert not header_has_left(browser)
    browser.press(Keys.ARROW_UP)
    assert not header_has_left(browser)
    browser.write("line\n" * 50)
    assert not header_has_left(browser)


def test_language_and_theme_follow_the_system(browser: Browser) -> None:
    def background() -> str:
        return browser.js("return getComputedStyle(document.body).backgroundColor")

    browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.open(theme="", language="")
    dark = background()
    browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.until(lambda: background() != dark)
    browser.click("#theme")
    assert background() == dark
    browser.click("#language")
    assert browser.js("return document.documentElement.lang") == "zh-CN"
    browser.reload()
    assert browser.texts("#new span") == ["新对话"]
    assert background() == dark
    browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    moving = "e => parseFloat(getComputedStyle(e).transitionDuration)"
    assert browser.js(f"return [...document.querySelectorAll('*')].filter({moving}).length") == 0
    browser.cdp("Emulation.setEmulatedMedia", features=[])


def test_no_other_script_runs(browser: Browser) -> None:
    """The Content-Security-Policy refuses scripts that hostile text could inject."""
    browser.expect_error("Content Security Policy")
    browser.expect_error("Trusted")
    done = "const s = document.createElement('script'); s.text = 'document.title = 1'; document.body.append(s);"
    for script in (done, "document.body.innerHTML = '<b>x</b>'", "document.body.setAttribute('onclick', 'x()')"):
        with pytest.raises(Exception, match="Trusted"):
            browser.js(script)
    assert browser.js("return document.title") == "Chatbot"
