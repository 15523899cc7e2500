"""A hook of MkDocs (mkdocs.yml): the site has a menu of languages in place of links from one to the other."""

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"^\[(中文|English)\]\([\w./-]+\)( · )?", "", markdown, count=1, flags=re.MULTILINE)
