"""The pictures of the documents, which docs/pictures/make.py makes."""

import pytest

from tests.commands import ROOT

LARGEST_FILE = 300_000  # bytes


@pytest.mark.parametrize("name", ["terminal.png", "tensorboard.png", "report.png", "page.png"])
def test_pictures_are_small_pngs(name: str) -> None:
    content = (ROOT / "docs/pictures" / name).read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(content) <= LARGEST_FILE
