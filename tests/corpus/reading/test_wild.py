"""Files as people have them: each is read as a person would read it, or refused, or asked about.

Beside each file, NAME.expected.json has one of:

    {"pairs": [[question, answer], ...]}       the file is read without a question
    {"refused": "part of the message"}         nothing in it is a pair
    {"asks": "--flag", "options": {"columns": ["1", "2"]}, "pairs": [...]}
                                               without options, the reading is shown and this flag is asked for; with
                                               the options, which are those of ReadOptions, these are the pairs. The
                                               flag is in the message, ready to paste; "--columns" alone asks for two
                                               of those that it lists

"options" may stand beside "pairs" alone, too, and beside "refused". The texts are those after the default cleaning.
"links", a list of numbers, may give how each pair follows the previous one, and "report" the lines of the report, each
by a part of it, "charset" the charset, and "parts" the pairs of the training, validation and test parts of a file or a
folder that is divided by names in it. Where "pairs" is missing beside "asks", what the flag would read is of no
interest, as of a log.

Files that are no text, too, stand as they are; an office program or an unpacker shows what is in them.

The thresholds in `chatbot/corpus/reading` are set by this collection and by nothing else.
"""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from chatbot.config.corpus import FORMATS, INSPECT, TEXT_RULES, CorpusSettings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.files import CorpusFiles
from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.sources import find_parts, find_sources
from chatbot.errors import UserError

WILD = Path(__file__).parent / "wild"
SUFFIX = ".expected.json"
NAMES = sorted(path.name.removesuffix(SUFFIX) for path in WILD.glob(f"*{SUFFIX}"))
LONGEST_MESSAGE = 200  # characters, without the folder of the file
SHOWN = 3  # pairs
# What --format cannot give: a head has a flag of its own, and a file of bytes says what it is.
OTHER_FORMATS = {"head", "arrow", "parquet", "xls", "xlsx"}


def test_every_file_has_an_expectation() -> None:
    files = {path.name for path in WILD.iterdir() if not path.name.endswith(SUFFIX) and path.name[0] != "."}
    assert files == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_wild_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(WILD)
    expected = _expected(name)
    options = _options(expected.get("options", {}))
    if "refused" in expected:
        message = str(_refused(name, options))
        assert expected["refused"] in message
        return
    if "asks" in expected:
        error = _refused(name, ReadOptions())
        assert expected["asks"] in str(error)
        # The pairs as they would be read, each on one line, and how they are read.
        assert 1 <= len(error.details) <= SHOWN + 1
        assert all("\n" not in line for line in error.details)
        pasted = _pasted(str(error), expected["asks"])
        if "pairs" not in expected:
            return
        assert dataclasses.replace(options, **pasted) == options
        options = _options({**expected["options"], **pasted})
    pairs, report = _read(name, options)
    assert {*report.formats} <= {*FORMATS} | OTHER_FORMATS
    clean = cleaner([rule for rule in CorpusSettings().clean if rule in TEXT_RULES])
    assert [[clean(pair[0]), clean(pair[1])] for pair in pairs] == expected["pairs"]
    if "charset" in expected:
        assert report.charsets == [expected["charset"]]
    if "parts" in expected:
        assert _parts(name) == expected["parts"]
    if "links" in expected:
        assert [pair[2] for pair in pairs] == expected["links"]
    if "report" in expected:
        lines = [*report.lines(), *report.notes()]
        assert len(lines) == len(expected["report"]), lines
        assert all(part in line for part, line in zip(expected["report"], lines, strict=True))


def formats_of_wild(name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The formats of a wild file with the options that it wants, none of one that is refused."""
    monkeypatch.chdir(WILD)
    expected = _expected(name)
    return [] if "refused" in expected else _read(name, _options(expected.get("options", {})))[1].formats


def _expected(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((WILD / f"{name}{SUFFIX}").read_text(encoding="utf-8"))
    return values


def _pasted(message: str, asks: str) -> dict[str, Any]:
    """The options that the flag in a message gives on the command line."""
    if asks == "--columns":
        assert "give --columns and two of: " in message
        return {}
    assert f"give {asks}" in message
    settings = INSPECT.parse(["file", *shlex.split(asks)]).corpus
    return {name: value for name, value in vars(CorpusFiles((), settings).options).items() if value}


def _options(values: dict[str, Any]) -> ReadOptions:
    return ReadOptions(**{**values, "columns": tuple(values.get("columns", ()))})


def _read(name: str, options: ReadOptions) -> tuple[list[Pair], Report]:
    report = Report()
    return [pair for source in find_sources([name]) for pair in read(source, report, options)], report


def _parts(name: str) -> dict[str, list[list[str]]]:
    """The pairs of each part; that of the test part is left out by its name."""
    parts = find_parts([name])
    assert (parts.test != []) == any(path.startswith(name) for path in parts.left_out)
    found = {"training": parts.training, "validation": parts.validation, "test": parts.test}
    return {
        part: [[*pair[:2]] for source in sources for pair in read(source, Report())] for part, sources in found.items()
    }


def _refused(name: str, options: ReadOptions) -> UserError:
    with pytest.raises(UserError) as raised:
        _read(name, options)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) <= LONGEST_MESSAGE
    return raised.value
