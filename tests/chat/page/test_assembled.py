"""The parts of the page, and the document that they make."""

import base64
import hashlib
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from chatbot.chat.page.assembled import FOLDER, LANGUAGES, SCRIPTS, STYLES, assembled_page

TEXTS = {
    language: json.loads((FOLDER / f"texts/{language}.json").read_text(encoding="utf-8")) for language in LANGUAGES
}
SOURCES = "".join(
    path.read_text(encoding="utf-8") for path in sorted(FOLDER.rglob("*.*")) if path.suffix in (".js", ".html")
)


class Elements(html.parser.HTMLParser):
    """The attributes of a document, and the text of its styles and scripts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, str] = {"style": "", "script": ""}
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in self.texts:
            self.texts[self._tag] += data


def test_policy_allows_the_script_and_the_styles_of_the_page_only() -> None:
    page = assembled_page()
    document = Elements()
    document.feed(page.content.decode())
    policy = dict(part.strip().split(" ", 1) for part in page.headers["Content-Security-Policy"].split(";"))
    for name, text in (("script-src", document.texts["script"]), ("style-src", document.texts["style"])):
        assert policy[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert policy["default-src"] == "'none'"
    assert not [name for name, _ in document.attributes if name.startswith("on") or name == "style"]


def test_page_loads_nothing_else() -> None:
    content = assembled_page().content.decode()
    namespaces = content.replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"https?://|//cdn|@import|<link rel=\"stylesheet|<script src", namespaces)
    assert set(re.findall(r"url\(\"?(\w+):", content)) == {"data"}


def test_all_parts_are_used_and_short() -> None:
    assert {path.stem for path in FOLDER.glob("scripts/*")} == set(SCRIPTS)
    assert {path.stem for path in FOLDER.glob("styles/*")} == set(STYLES)
    for path in [path for path in FOLDER.rglob("*.*") if path.suffix in (".js", ".css", ".html", ".json")]:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", SOURCES)


def test_both_languages_have_the_texts_that_are_used() -> None:
    english, chinese = TEXTS["en"], TEXTS["zh"]
    assert english.keys() == chinese.keys()
    for key in english:
        assert set(re.findall(r"\{\w+\}", english[key])) == set(re.findall(r"\{\w+\}", chinese[key])), key
    used = set(re.findall(r"\bt\(\s*\"(\w+)\"", SOURCES)) | set(
        re.findall(r"data-(?:text|label|placeholder)=\"(\w+)", SOURCES)
    )
    assert used <= english.keys()
    unused = {key for key in english.keys() - used if not re.search(rf"[\"`]{key}[\"`]", SOURCES)}
    assert {re.sub(r"_(help|light|dark|value|short|validated)", "", key) for key in unused} <= {
        *("theme", "card_quality", "card_not", "card_not_validated"),
        *("temperature", "top_p", "min_p", "seed", "n", "max_tokens", "presence_penalty", "frequency_penalty"),
    }


def test_scripts_are_correct_javascript(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    document = Elements()
    document.feed(assembled_page().content.decode())
    script = tmp_path / "page.mjs"
    script.write_text(document.texts["script"], encoding="utf-8")
    checked = subprocess.run([node, "--check", str(script)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
