"""A file of pairs for the tests of training."""

from pathlib import Path

import pytest


def write_pairs(path: Path) -> None:
    """Write ten pairs, each a question with its own answer."""
    path.write_text(
        "".join(f"{q}{q}\t{a}\n" for q, a in zip("甲乙丙丁戊己庚辛壬癸", "子丑寅卯辰巳午未申酉", strict=True))
    )


@pytest.fixture
def pairs_file(work_dir: Path) -> Path:
    """pairs.tsv in an empty current directory: ten pairs, each a question with its own answer."""
    path = work_dir / "pairs.tsv"
    write_pairs(path)
    return path


@pytest.fixture
def held_out(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A validation pair beside pairs.tsv, which decides alone."""
    monkeypatch.setattr("chatbot.training.data.MIN_DECISIVE_PAIRS", 1)
    path = pairs_file.with_name("held_out.tsv")
    path.write_text("甲甲\t癸癸癸\n")
    return path
