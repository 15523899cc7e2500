"""The files of the server's web page."""

import dataclasses
import functools
import gzip
import hashlib
import string
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = "page.html"
# The JavaScript module that imports all other modules of the page.
START = "scripts/start.js"
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# The Content-Security-Policy allows scripts, styles and requests only from the page's own server. It forbids inline
# scripts, form submissions, and embedding the page in frames.
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
    """A static file of the page, with its gzipped content and its response headers."""

    content: bytes
    compressed: bytes
    headers: dict[str, str]


@functools.cache
def page_files() -> dict[str, PageFile]:
    """Return a dictionary from URL paths, relative to the page, to files. The path of the page itself is "".

    Every other path contains a hash of all files, so a new version has new paths. Therefore browsers may cache these
    files forever. Only the page itself is requested again on every visit.
    """
    paths = sorted(path for path in FOLDER.rglob("*") if path.suffix in CONTENT_TYPES and path.name != PAGE)
    contents = {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in paths}
    digest = hashlib.sha256(b"".join(name.encode() + content for name, content in contents.items())).hexdigest()
    base = f"page/{digest[:16]}"
    document = string.Template((FOLDER / PAGE).read_text(encoding="utf-8")).substitute(
        links=_build_links(base, [*contents])
    )
    page = _build_file(PAGE, document.encode(), {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"})
    cached = {"Cache-Control": "public, max-age=31536000, immutable"}
    return {"": page, **{f"{base}/{name}": _build_file(name, content, cached) for name, content in contents.items()}}


def _build_links(base: str, names: list[str]) -> str:
    """Return the HTML elements that load the files. Scripts are preloaded, so browsers fetch them in parallel."""
    styles = [f'<link rel="stylesheet" href="{base}/{name}">' for name in names if name.endswith(".css")]
    modules = [f'<link rel="modulepreload" href="{base}/{name}">' for name in names if name.endswith(".js")]
    return "\n".join([*styles, *modules, f'<script type="module" src="{base}/{START}"></script>'])


def _build_file(name: str, content: bytes, headers: dict[str, str]) -> PageFile:
    common = {
        "Content-Type": f"{CONTENT_TYPES[Path(name).suffix]}; charset=utf-8",
        "ETag": f'W/"{hashlib.sha256(content).hexdigest()[:32]}"',
        "Vary": "Accept-Encoding",
    }
    return PageFile(content, gzip.compress(content, mtime=0), {**common, **headers})
