"""Fixtures of the tests of the benchmarks."""

from pathlib import Path

import pytest


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """A few pairs of short words."""
    file = tmp_path / "pairs.tsv"
    file.write_text("".join(f"你好 {i}\t我 很 好 {i % 5}\n" for i in range(40)), encoding="utf-8")
    return str(file)
