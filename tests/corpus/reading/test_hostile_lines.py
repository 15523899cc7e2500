"""Lines that were made to be slow: no step of reading takes more than linear time."""

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from chatbot.config.corpus import FORMATS, PAIR_RULES, TEXT_RULES, CorpusSettings
from chatbot.corpus.chunks import clean_pairs
from chatbot.corpus.reading.lines import MAX_BLOCK
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.reading.turns import NEW, Pair
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import written
from tests.pace import cost

LENGTH = 100_000  # characters
PLAIN = "It is a fine day, "
HOSTILE = ["1", " ", '"', "[", "1:1 ", "- ", "<a", "&中"]
IN_CLEANING = ["\t", "\x01", "@a //", "http:// "]
MAX_RATIO = 10  # maximum ratio to the cost of plain lines
MIN_LIMIT = 10  # units of `cost` that are always allowed


# A text of each format, and of none, with {line} where it may have any text, or {quoted} for a string of JSON.
DOCUMENTS: dict[str, str] = json.loads(Path(__file__).with_name("hostile_documents.json").read_text(encoding="utf-8"))


def document(name: str, line: str) -> str:
    """A text of this format with a line."""
    return DOCUMENTS[name].replace("{line}", f"x{line}x").replace("{quoted}", json.dumps(f"x{line}x"))


def cost_of(work: Callable[[], object]) -> float:
    """The cost of reading a text or cleaning a pair, which may be refused."""

    def work_or_refusal() -> None:
        with contextlib.suppress(UserError):
            work()

    return cost(work_or_refusal)


@pytest.mark.parametrize("name", ["none", *FORMATS])
def test_no_line_is_slow_to_read(tmp_path: Path, name: str) -> None:
    def read_line_of(unit: str) -> list[Pair]:
        path = written(tmp_path, "lines", document(name, (unit * LENGTH)[:LENGTH]))
        report = Report()
        options = ReadOptions(format=name if name == "turns" else None)  # which is never detected
        pairs = list(read(find_sources([str(path)])[0], report, options))
        assert report.formats == [name] or unit != PLAIN
        return pairs

    limit = MIN_LIMIT + MAX_RATIO * cost_of(lambda: read_line_of(PLAIN))
    for unit in HOSTILE:
        assert cost_of(functools.partial(read_line_of, unit)) < limit, unit


def test_no_line_is_slow_to_clean() -> None:
    settings = CorpusSettings(clean=tuple(rule for rule in (*TEXT_RULES, *PAIR_RULES) if rule != "simplified"))

    def clean_line_of(unit: str) -> None:
        line = (unit * LENGTH)[:LENGTH]
        assert list(clean_pairs([(f"x{line}x", "y", NEW)], 1, Report(), settings))

    limit = MIN_LIMIT + MAX_RATIO * cost_of(lambda: clean_line_of(PLAIN))
    for unit in [*HOSTILE, *IN_CLEANING]:
        assert cost_of(functools.partial(clean_line_of, unit)) < limit, unit


LONG: dict[str, tuple[str, str, str]] = {  # the beginning, what is repeated, and the end
    "marks of a template": ("", "### Human: a\n", ""),
    "turns of a template": ("", "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n", ""),
    "parts of one turn": (
        "<|im_start|>user\na\n<|im_start|>assistant\nb\n",
        "<|im_start|>user\na\n",
        "<|im_start|>assistant\nb\n",
    ),
    "marks in one line": ('{"text": "', "### Human: a\\n", '"}\n'),
    "headings with spaces": ("", "# a" + " " * 990 + "\n", ""),
    "spaces after a label": ("Q: a\nA: b\nQ", " ", "x\n"),
    "lines of an answer": ("Q: a\nA: b\n", "c\n", ""),
    "lines of a message": ("[1.1.20, 10:00] A: a\n[1.1.20, 10:00] B: b\n", "c\n", ""),
    "lines below a head": ("2020-01-01 12:00:00 A(12345)\n", "  c\n", ""),
    "an open bracket in a cue": ("1\n00:00:01,000 --> 00:00:02,000\n", "(", "\n"),
    "nested lists": ("", '{"a": [', ""),
    "empty lines of a document": ('[["a", "b"],\n', "\n", '["c", "d"]]'),
}


@pytest.mark.parametrize(("begin", "unit", "end"), LONG.values(), ids=LONG.keys())
def test_long_texts_take_linear_time(tmp_path: Path, begin: str, unit: str, end: str) -> None:
    """Four times as much takes at most eight times as long."""

    def read_text_of(size: int) -> list[Pair]:
        path = written(tmp_path, "long", begin + unit * (size // len(unit)) + end)
        return list(read(find_sources([str(path)])[0], Report()))

    limit = MIN_LIMIT + 8 * cost_of(lambda: read_text_of(500_000))
    assert cost_of(lambda: read_text_of(2_000_000)) < limit


def test_the_lines_below_a_label_are_bounded(tmp_path: Path) -> None:
    path = written(tmp_path, "long", "Q: a\nA: b\n" + "c\n" * MAX_BLOCK)
    ((_, answer, _),) = read(find_sources([str(path)])[0], Report(), ReadOptions(format="qa"))
    assert len(answer) == MAX_BLOCK + 1
