"""A browser for tests: the actions of a user, and what the user sees."""

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.chat.server.fake_models import FakeEngine

LIMIT = 240.0  # seconds of a wait; it ends what hangs
DESKTOP, PHONE, NARROW = (1280, 800), (390, 844), (320, 640)


@dataclasses.dataclass(frozen=True)
class Served:
    """A running server. key_address: the address of another one that needs a key."""

    address: str
    key_address: str
    ratings: Path
    engines: dict[str, FakeEngine]


class Browser:
    """A browser that shows the page."""

    def __init__(self, chromium: webdriver.Chrome, served: Served) -> None:
        self.chromium, self.served = chromium, served
        self._expected: list[str] = []

    def open(self, address: str | None = None, size: tuple[int, int] = DESKTOP, **settings: Any) -> None:
        """Open the page with an empty storage and these settings. address: None for the server without a key."""
        self.cdp("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1], deviceScaleFactor=1, mobile=False)
        self.chromium.get(f"{address or self.served.address}/health")  # the same origin without the page
        self.chromium.execute_script("localStorage.clear(); sessionStorage.clear()")
        stored = json.dumps({"language": "en", "theme": "light", **settings})
        self.chromium.execute_script("localStorage.setItem('chatbot.settings', arguments[0])", stored)
        self.chromium.get(f"{address or self.served.address}/")
        self.until(lambda: self.js("return document.querySelectorAll('#model option').length") or self.notice)

    def reload(self) -> None:
        """Reload the page."""
        self.chromium.refresh()
        self.until(lambda: self.js("return document.querySelectorAll('#model option').length > 0"))

    def js(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page, bypassing its Content-Security-Policy."""
        return self.chromium.execute_script(script, *arguments)

    def cdp(self, command: str, **arguments: Any) -> Any:
        """Run a command of the DevTools protocol."""
        return self.chromium.execute_cdp_cmd(command, arguments)

    def one(self, selector: str) -> WebElement:
        """Return the first element that matches a selector."""
        return self.chromium.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements that match a selector."""
        return self.chromium.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """Return the full texts of the elements that match a selector, visible or not."""
        return self.js("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def click(self, selector: str) -> None:
        """Wait for an element and click it."""
        self.until(lambda: self.all(selector))
        self.one(selector).click()

    def press(self, *keys: str) -> None:
        """Press keys in the focused element."""
        webdriver.ActionChains(self.chromium).send_keys(*keys).perform()

    def press_with(self, modifier: str, key: str) -> None:
        """Press a key with a modifier."""
        webdriver.ActionChains(self.chromium).key_down(modifier).send_keys(key).key_up(modifier).perform()

    def write(self, text: str) -> None:
        """Set the text of the message field, which can have characters that no keyboard has."""
        self.js(
            f"const m = document.getElementById('message'); m.value = {json.dumps(text)}; m.focus();"
            "m.dispatchEvent(new Event('input', {bubbles: true}))"
        )

    def ask(self, text: str, wait: bool = True) -> None:
        """Send a question, and wait until all replies are complete."""
        before = len(self.questions)
        self.write(text)
        self.press(Keys.ENTER)
        self.until(lambda: len(self.questions) > before)
        if wait:
            self.until(lambda: not self.running)

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for a condition."""
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, self.js("return document.body.innerText")
            time.sleep(0.02)

    @property
    def running(self) -> bool:
        """Whether replies are being generated."""
        return self.js("return !document.getElementById('stop').hidden")

    @property
    def questions(self) -> list[str]:
        """The questions of the conversation."""
        return self.texts(".bubble")

    @property
    def replies(self) -> list[str]:
        """The replies of the conversation, including alternatives that were not chosen."""
        return self.texts(".reply")

    @property
    def notice(self) -> str:
        """The line above the message field."""
        return "".join(self.texts("#notice p"))

    @property
    def focused(self) -> str:
        """The accessible name or the id of the focused element."""
        return self.js("const e = document.activeElement; return e.ariaLabel || e.innerText || e.id")

    def settings(self, **values: Any) -> None:
        """Change settings as the dialog does, without opening it."""
        for name, value in values.items():
            self.js(
                "const f = document.getElementById('settings-form').elements[arguments[0]]; f.value = arguments[1];"
                "(f.length && !f.options ? f[0] : f).dispatchEvent(new Event('change', {bubbles: true}))",
                name,
                value,
            )

    def choose(self, model: str) -> None:
        """Choose a model in the header."""
        self.js(
            "const s = document.getElementById('model'); s.value = arguments[0];"
            "s.dispatchEvent(new Event('change', {bubbles: true}))",
            model,
        )

    def expect_error(self, part: str) -> None:
        """Expect an error in the browser's log, because a request of the test fails."""
        self._expected.append(part)

    def errors(self) -> list[str]:
        """Return the unexpected errors in the browser's log, such as exceptions and violations of the policy."""
        messages = [entry["message"] for entry in self.chromium.get_log("browser")]
        return [message for message in messages if not any(part in message for part in self._expected)]
