"""Cornell's movie dialogs."""

from pathlib import Path

import pytest

from chatbot.errors import UserError
from tests.corpus.reading.sample_files import dropped, pairs_of, written, zipped

LINES = (
    "L1 +++$+++ u0 +++$+++ m0 +++$+++ BIANCA +++$+++ They do not!\n"
    "L2 +++$+++ u2 +++$+++ m0 +++$+++ CAMERON +++$+++ They do to!\n"
    "L3 +++$+++ u0 +++$+++ m0 +++$+++ BIANCA +++$+++ Fine.\n"
    "broken\n"
)
CONVERSATIONS = (
    "u0 +++$+++ u2 +++$+++ m0 +++$+++ ['L1', 'L2', 'L3']\n"
    "u0 +++$+++ u2 +++$+++ m0 +++$+++ ['L3', 'L9', 'L1']\n"
    "u0 +++$+++ u2 +++$+++ m0 +++$+++ ['L3']\n"
    "u0 +++$+++ u2 +++$+++ m0 +++$+++ []\n"
)
PAIRS = [("They do not!", "They do to!"), ("They do to!", "Fine.")]


def test_cornell_files_give_pairs(tmp_path: Path) -> None:
    written(tmp_path, "movie_conversations.txt", CONVERSATIONS)
    written(tmp_path, "movie_lines.txt", LINES)
    pairs, report = pairs_of(tmp_path)
    assert pairs == PAIRS
    assert (report.formats, report.charsets) == (["cornell"], ["UTF-8"])
    assert dropped(report) == {
        "rows with too few columns": 1,
        "ids that are not in movie_lines.txt": 1,
        "conversations of one utterance": 1,
        "lines without a list of ids": 1,
    }


def test_other_content_under_cornell_names_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, "movie_lines.txt", "甲\t乙\n")
    written(tmp_path, "movie_conversations.txt", CONVERSATIONS)
    with pytest.raises(UserError, match=r"no line of movie_lines.txt has Cornell's format"):
        pairs_of(tmp_path)


def test_packed_cornell_files_are_refused(tmp_path: Path) -> None:
    members = {"c/movie_conversations.txt": CONVERSATIONS, "c/movie_lines.txt": LINES}
    with pytest.raises(UserError):
        pairs_of(written(tmp_path, "c.zip", zipped(members)))
