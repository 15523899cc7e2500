"""The limits at which lines are taken for a conversation."""

from pathlib import Path

import pytest

from chatbot.corpus.reading.formats.chat_logs import is_qq, speakers_of
from chatbot.corpus.reading.open.text_file import open_text_files
from chatbot.corpus.reading.report import Report
from tests.corpus.reading.sample_files import written


@pytest.mark.parametrize(
    ("lines_of_speakers", "lines_without", "speakers"),
    [
        # Every line begins with a name: at least one name comes twice, and they are 2 to 20.
        ([1, 1], 0, 0),
        ([2], 0, 0),
        ([2, 1], 0, 2),
        ([2, *[1] * 19], 0, 20),
        ([2, *[1] * 20], 0, 0),
        ([2] * 21, 0, 0),
        # Of others, those that come twice: 2 to 20, on two fifths of the lines,
        ([2], 1, 0),
        ([2] * 20, 1, 20),
        ([2] * 21, 1, 0),
        ([2, 2], 6, 2),
        ([2, 2], 7, 0),
        # and with as many lines beyond each one's first as there are lines of names that come once.
        ([2, 2, 1, 1], 1, 2),
        ([2, 2, 1, 1, 1], 1, 0),
    ],
)
def test_speakers_are_names_that_come_again(lines_of_speakers: list[int], lines_without: int, speakers: int) -> None:
    names = [f"Anna{chr(ord('a') + i)}" for i in range(len(lines_of_speakers))]
    lines = [f"{name}: well" for name, count in zip(names, lines_of_speakers, strict=True) for _ in range(count)]
    assert speakers_of([*lines, *["she said"] * lines_without, "", " \n"]) == names[:speakers]


MESSAGE = "2020-01-01 12:00:00 小明\n在吗\n\n"


@pytest.mark.parametrize("faulty", [0, 1, 2])
@pytest.mark.parametrize("fault", [MESSAGE.removesuffix("\n"), MESSAGE.replace("在吗\n", "")])
def test_qq_has_numbers_or_blank_lines_between_messages(tmp_path: Path, fault: str, faulty: int) -> None:
    """One message of five may have none, or no text below its header."""
    content = fault * faulty + MESSAGE * (5 - faulty)
    for name, expected in (("小明", faulty <= 1), ("小明(12345678)", True)):
        path = written(tmp_path, "a.txt", content.replace("小明", name))
        assert [is_qq(text) for text in open_text_files(path, "a.txt", Report())] == [expected]
