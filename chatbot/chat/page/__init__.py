"""The page and the files that it loads, all from its own server."""

import dataclasses
import functools
import gzip
import hashlib
import string
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = "page.html"
# A module may be loaded by import from the others, too; only this one is started.
START = "scripts/start.js"
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# Scripts, styles and requests of its own server only; no attribute with a script, no form that is sent elsewhere, and
# no frame around the page.
POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ]
)


@dataclasses.dataclass(frozen=True)
class PageFile:
    """A file that anyone may have, plain and compressed by gzip, and the headers of its response."""

    content: bytes
    compressed: bytes
    headers: dict[str, str]


@functools.cache
def page_files() -> dict[str, PageFile]:
    """Return the files by their paths, relative to that of the page, whose own path is "".

    The path of each file but the page has a hash of all of them, so that a browser keeps it and never mixes it with
    those of another version. The page names these paths, and is asked for anew each time.
    """
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in CONTENT_TYPES and path.name != PAGE)
    contents = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}
    digest = hashlib.sha256(b"".join(name.encode() + content for name, content in contents.items())).hexdigest()
    base = f"page/{digest[:16]}"
    document = string.Template((FOLDER / PAGE).read_text(encoding="utf-8")).substitute(links=_links(base, [*contents]))
    page = _file(PAGE, document.encode(), {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"})
    kept = {"Cache-Control": "public, max-age=31536000, immutable"}
    return {"": page, **{f"{base}/{name}": _file(name, content, kept) for name, content in contents.items()}}


def _links(base: str, names: list[str]) -> str:
    """Return the elements that load the files, all modules at once and not only when another one imports them."""
    styles = [f'<link rel="stylesheet" href="{base}/{name}">' for name in names if name.endswith(".css")]
    modules = [f'<link rel="modulepreload" href="{base}/{name}">' for name in names if name.endswith(".js")]
    return "\n".join([*styles, *modules, f'<script type="module" src="{base}/{START}"></script>'])


def _file(name: str, content: bytes, headers: dict[str, str]) -> PageFile:
    common = {
        "Content-Type": f"{CONTENT_TYPES[Path(name).suffix]}; charset=utf-8",
        "ETag": f'W/"{hashlib.sha256(content).hexdigest()[:32]}"',
        "Vary": "Accept-Encoding",
    }
    return PageFile(content, gzip.compress(content, mtime=0), {**common, **headers})
