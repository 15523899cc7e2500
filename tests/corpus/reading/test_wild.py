"""Files as people have them: each is read as a person would read it, or refused, or asked about.

The files stand by family in `wild`; `wild_files` says how a family describes its inputs. Each case has one of these
expectations:

    pairs: [[question, answer], ...]           the file is read without a question
    refused: part of the message               nothing in it is a pair
    asks: --flag                               without options, the reading is shown and this flag is asked for,
    because: part of the message               for this reason; with
    options: {columns: ["1", "2"]}             the options, which are those of ReadOptions, these are the pairs. The
    pairs: [...]                               flag is in the message, ready to paste; "--columns" alone asks for two
                                               of those that it lists

"options" may stand beside "pairs" alone, too, and beside "refused". The texts are those after the default cleaning.
"links", a list of numbers, may give how each pair follows the previous one, and "report" gives the lines of the report,
each by a part of it; there are no others. "charset" may give the charset, and "parts" the pairs of the training,
validation and test parts of a file or a folder that is divided by names in it. Where "pairs" is missing beside "asks",
what the flag would read is of no interest, as of a log.

The thresholds in `chatbot/corpus/reading` are set by this collection and by nothing else.
"""

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from chatbot.config.corpus import FORMATS, INSPECT, TEXT_RULES, CorpusSettings
from chatbot.corpus.cleaning import cleaner
from chatbot.corpus.files import CorpusFiles
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.sources import find_parts, find_sources
from chatbot.corpus.reading.turns import Pair
from chatbot.errors import UserError
from tests.corpus.reading.wild_files import BINARY, FAMILIES, INPUTS, cases, write

MAX_MESSAGE = 200  # characters, without the folder of the file
SHOWN = 3  # pairs
# What --format cannot give: a head has a flag of its own, and a file of bytes says what it is.
OTHER_FORMATS = {"head", "arrow", "parquet", "xls", "xlsx"}


def test_each_file_has_a_case_and_each_case_a_name_of_its_own() -> None:
    """YAML takes the last of two cases with one name."""
    text = "".join(path.read_text(encoding="utf-8") for path in FAMILIES)
    assert len(re.findall(r"^[^\s#].*:$", text, re.MULTILINE)) == len(cases())
    assert {path.name for path in BINARY.iterdir()} == {
        name for name, case in cases().items() if not case.keys() & INPUTS
    }


@pytest.mark.parametrize("name", sorted(cases()))
def test_wild_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(name, tmp_path)
    expected = cases()[name]
    options = _options(expected.get("options", {}))
    if "refused" in expected:
        message = str(_refused(name, options))
        assert expected["refused"] in message
        return
    if "asks" in expected:
        error = _refused(name, ReadOptions())
        assert expected["asks"] in str(error)
        assert expected["because"] in str(error)
        # The pairs as they would be read, each on one line, and how they are read.
        assert 1 <= len(error.details) <= SHOWN + 1
        assert all("\n" not in line for line in error.details)
        if expected["asks"].startswith("--columns ") and re.search("format [ct]sv", error.details[0]):
            assert "question from column" in error.details[0]
        if error.details[0].endswith(":"):
            assert re.search(r", read as format [\w-]+, [\w-]+(, question from column.*)?:$", error.details[0])
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
    lines = [*report.lines(), *report.notes()]
    assert len(lines) == len(expected.get("report", [])), lines
    assert all(part in line for part, line in zip(expected.get("report", []), lines, strict=True))


def formats_of_wild(name: str, folder: Path) -> list[str]:
    """The formats of a wild file, written to a folder, with the options that it wants; none of one that is refused."""
    case = cases()[name]
    if "refused" in case:
        return []
    return _read(str(write(name, folder)), _options(case.get("options", {})))[1].formats


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
    assert len(str(raised.value)) <= MAX_MESSAGE
    return raised.value
