"""The pictures of the documents: those of docs/pictures/make.py, and the charts of benchmarks/README.md."""

import runpy
from typing import Any

import pytest

from tests.commands import ROOT

PICTURES = ROOT / "docs" / "pictures"
MAX_FILE = 300_000  # bytes
MAX_FILM = 1_000_000  # bytes

TABLE = """
| model | rate | rounds | rate |
|---|---|---|---|
| **ours** (defaults) | **4,696** | 4,608 to 4,789 | 1 |
| theirs, `--flag`; measured once | 41% +- 2.8 | | 2 |
"""


@pytest.fixture(scope="module")
def charts() -> dict[str, Any]:
    return runpy.run_path(str(PICTURES / "benchmark_charts.py"))


def test_pictures_are_small_and_films_are_animated() -> None:
    for path in PICTURES.iterdir():
        content = path.read_bytes()
        if path.suffix == ".png":
            assert content.startswith(b"\x89PNG\r\n\x1a\n")
            assert len(content) <= MAX_FILE
        elif path.suffix == ".webp":
            assert content[:4] + content[8:12] == b"RIFFWEBP"
            assert b"ANIM" in content[:64]
            assert len(content) <= MAX_FILM


def test_every_picture_is_in_a_document() -> None:
    documents = "".join(
        path.read_text(encoding="utf-8")
        for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/*.md"))
    )
    names = [path.name for path in PICTURES.iterdir() if path.suffix in (".png", ".svg", ".webp")]
    assert [name for name in names if f"pictures/{name})" not in documents] == []


def test_charts_match_the_tables(charts: dict[str, Any]) -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    for name, drawn in charts["FILES"].items():
        current = (PICTURES / name).read_text(encoding="utf-8")
        assert current == charts["drawing"](drawn, text), "run python docs/pictures/benchmark_charts.py"


def test_charts_of_other_tables_are_refused(charts: dict[str, Any]) -> None:
    for heading, names, message in (
        ("speed", {}, "0 tables"),
        ("rounds", {}, "is no number"),
        ("rate", {"another": "another"}, r"no row, or several, for \['another'\]"),
    ):
        with pytest.raises(ValueError, match=message):
            charts["bars"](charts["Chart"]("Rates", "", ("model", heading), names=names), TABLE)
