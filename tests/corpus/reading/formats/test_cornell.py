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


@pytest.mark.parametrize("zipped_together", [False, True])
def test_cornell_files_and_zip_give_pairs(tmp_path: Path, zipped_together: bool) -> None:
    files = {"movie_conversations.txt": CONVERSATIONS, "movie_lines.txt": LINES}
    if zipped_together:
        members = {f"cornell/{name}": content for name, content in files.items()}
        path = written(tmp_path, "c.zip", zipped({**members, "cornell/README.txt": "hello", "__MACOSX/x": "x"}))
    else:
        path = tmp_path
        for name, content in files.items():
            written(tmp_path, name, content)
    pairs, report = pairs_of(path)
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


def test_zip_with_two_copies_is_read_once(tmp_path: Path) -> None:
    files = {"movie_conversations.txt": CONVERSATIONS, "movie_lines.txt": LINES}
    members = {f"{folder}/{name}": content for folder in "ab" for name, content in files.items()}
    assert pairs_of(written(tmp_path, "c.zip", zipped(members)))[0] == PAIRS
