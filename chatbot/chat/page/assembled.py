"""The parts of the page in one document, which loads nothing else.

page.html has a place for all styles and one for all scripts. The scripts are one module: a name of one file is known in
the others.
"""

import base64
import dataclasses
import functools
import hashlib
import json
import string
from pathlib import Path

FOLDER = Path(__file__).parent
STYLES = ("base", "frame", "conversation", "dialogs")
# start.js begins the page, and is the last one.
SCRIPTS = (
    *("elements", "texts", "storage", "exchange", "server", "settings", "models", "sidebar"),
    *("turns", "feedback", "attention", "asking", "start"),
)
LANGUAGES = ("en", "zh")


@dataclasses.dataclass(frozen=True)
class Page:
    """The document and the headers of its response."""

    content: bytes
    headers: dict[str, str]


@functools.cache
def assembled_page() -> Page:
    """Return the page.

    Its Content-Security-Policy allows the page's own script and styles by their hashes, and requests to its own server.
    It allows no other script, no attribute with a script, no form that is sent elsewhere, and no frame around the page.
    """
    styles = "".join(_text(f"styles/{name}.css") for name in STYLES)
    scripts = _texts() + "".join(_text(f"scripts/{name}.js") for name in SCRIPTS)
    content = string.Template(_text("page.html")).substitute(styles=styles, scripts=scripts).encode()
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_source_hash(scripts)}'",
            f"style-src '{_source_hash(styles)}'",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        ]
    )
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }
    return Page(content, headers)


def _texts() -> str:
    """Return the script with the texts of all languages."""
    texts = {language: json.loads(_text(f"texts/{language}.json")) for language in LANGUAGES}
    literal = json.dumps(texts, ensure_ascii=False).replace("<", "\\u003c")
    return f"const TEXTS = {literal};\n"


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _source_hash(text: str) -> str:
    """Return the source of a Content-Security-Policy that allows an element with this text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
