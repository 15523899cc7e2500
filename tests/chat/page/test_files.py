"""The files of the page and its modules."""

import graphlib
import gzip
import html.parser
import json
import re

import pytest
from selenium import webdriver

from chatbot.chat.page import FOLDER, POLICY, START, page_files

LANGUAGES = ("en", "zh")
TEXTS = {
    language: json.loads(
        (FOLDER / f"texts/{language}.js").read_text("utf-8").removeprefix("export default ").rstrip(";\n")
    )
    for language in LANGUAGES
}
SCRIPTS = {path.name: path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("scripts/*.js"))}
SOURCES = "".join([*SCRIPTS.values(), (FOLDER / "page.html").read_text(encoding="utf-8")])
EXPORT = re.compile(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)
IMPORT = re.compile(r"^import \{([\w,\s]+)\} from \"\./(\w+\.js)\";", re.MULTILINE)
EXPORTS = {name: set(EXPORT.findall(source)) for name, source in SCRIPTS.items()}
IMPORTS = {
    name: {imported: set(re.findall(r"\w+", names)) for names, imported in IMPORT.findall(source)}
    for name, source in SCRIPTS.items()
}


class Elements(html.parser.HTMLParser):
    """The attributes of a document."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += attrs


def test_page_allows_and_loads_its_own_files_only() -> None:
    files = page_files()
    document = Elements()
    document.feed(files[""].content.decode())
    assert not [name for name, _ in document.attributes if name.startswith("on") or name == "style"]
    loaded = [
        value for name, value in document.attributes if name in ("src", "href") and value and value[0] not in "#d"
    ]
    assert set(loaded) == files.keys() - {""}  # relative to the page, which may be behind a prefix
    nothing, own = (
        {f"{name} '{source}'" for name in names.split()}
        for names, source in (
            ("default-src base-uri form-action frame-ancestors", "none"),
            ("script-src style-src connect-src", "self"),
        )
    )
    assert nothing | own | {"img-src data:", "require-trusted-types-for 'script'"} == set(POLICY.split("; "))
    contents = "".join(file.content.decode() for file in files.values()).replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"https?://|//cdn|@import", contents)
    assert set(re.findall(r"url\(\"?(\w+):", contents)) == {"data"}
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", SOURCES)
    assert all(gzip.decompress(file.compressed) == file.content for file in files.values())


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
    assert {re.sub(r"_(help|light|dark)$", "", key) for key in unused} <= {
        *("theme", "temperature", "top_p", "min_p", "seed", "n", "max_tokens", "presence_penalty", "frequency_penalty")
    }


def test_modules_import_what_they_use_and_nothing_else() -> None:
    """A missing import would fail only when the line runs."""
    everything = {name: script for script, names in EXPORTS.items() for name in names}
    assert len(everything) == sum(map(len, EXPORTS.values()))
    for script, source in SCRIPTS.items():
        code = re.sub(r"//.*|/\*[\s\S]*?\*/|\"(?:[^\"\\\n]|\\.)*\"", "", IMPORT.sub("", source)).replace("...", " ")
        given = set().union(*IMPORTS[script].values())
        unused = {name for name in given if not re.search(rf"(?<![\w.]){name}\b", code)}
        assert not unused, script
        own = set(re.findall(r"\b(?:const|let|function\*?|class) (\w+)|[({,]\s*(?=(\w+)\b)", code))
        declared = {name for pair in own for name in pair if name} | set(re.findall(r"(\w+)(?=:| =>|\) =>)", code))
        called = set(re.findall(r"(?<![\w.])(\w+)(?=\()", code))
        assert not (called & everything.keys()) - given - declared - EXPORTS[script], script
    imported = {(script, name) for given in IMPORTS.values() for script, names in given.items() for name in names}
    assert {(script, name) for script, names in EXPORTS.items() for name in names} == imported  # each export is used
    order = [*graphlib.TopologicalSorter(IMPORTS).static_order()]  # raises CycleError
    assert order[-1] == START.removeprefix("scripts/")
    assert set(order) == SCRIPTS.keys()


def in_browser(bare: webdriver.Chrome, script: str) -> object:
    """Return the result of an asynchronous script. `load` imports one of `names`, all modules except START."""
    paths = {name: path for name in SCRIPTS for path in page_files() if path.endswith(f"/{name}") and name not in START}
    load = (
        f"const paths = {json.dumps(paths)}, names = Object.keys(paths), load = (name) => import(`/${{paths[name]}}`);"
    )
    return bare.execute_async_script(
        f"{load} (async () => {{ {script} }})().then(arguments[0], (error) => arguments[0](String(error)))"
    )


@pytest.mark.system
def test_modules_do_nothing_until_they_are_called(bare: webdriver.Chrome) -> None:
    """They can be imported without the elements of the page."""
    assert in_browser(bare, "return (await Promise.all(names.map(load))).length") == len(SCRIPTS) - 1
