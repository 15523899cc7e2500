"""Lines that were made to be slow: no step of reading takes more than linear time."""

import contextlib
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chatbot.config.corpus import FORMATS, PAIR_RULES, TEXT_RULES, CorpusSettings
from chatbot.corpus.chunks import clean_pairs
from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.questions import MAX_BLOCK
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import written

LENGTH = 100_000  # characters
PLAIN = "It is a fine day, "
HOSTILE = ["1", " ", '"', "[", "1:1 ", "- ", "<a", "&中"]
IN_CLEANING = ["\t", "\x01", "@a //", "http:// "]
SLOWEST = 10  # times as long as plain lines


def document(name: str, line: str) -> str:
    """A text of this format, or of none, with the line where it may have any text."""
    line = f"x{line}x"
    quoted = json.dumps(line)
    return {
        "none": line,
        "tsv": f"你好\t{line}\n{line[1:]}\t在\n",
        "csv": f"question,answer\n你好,{line}\n在,在\n",
        "conv": f"E\nM 你好\nM {line}\n",
        "jsonl": f'{{"question": "你好", "moss": {quoted}}}\n' * 2,
        "json": f'[["你好", {quoted}],\n["在吗", "在"]]\n',
        "yaml": f"conversations:\n- - 你好\n  - {line}\n",
        "douban": f"1\t你好\t{line}\n0\t在吗\t在\n",
        "qa": f"Q: {line}\nA: 在\nQ: 你好\nA: 你好呀\n",
        "lines": f"你好吗\n{line}\n\n在吗\n在\n",
        "whatsapp": f"1/1/20, 10:00 - A: {line}\n1/1/20, 10:01 - B: 在\n1/1/20, 10:02 - A: 好\n",
        "qq": f"2024-01-01 10:00:00 甲(10000)\n{line}\n\n2024-01-01 10:00:01 乙(10001)\n在\n",
        "srt": f"1\n00:00:01,000 --> 00:00:02,000\n{line}\n\n2\n00:00:02,500 --> 00:00:03,000\n在\n",
        "discord": f"[01/01/2023 10:00 AM] 甲\n{line}\n\n[01/01/2023 10:01 AM] 乙\n在\n",
        "kakaotalk": f"[甲] [오전 10:15] {line}\n[乙] [오전 10:16] 在\n[甲] [오전 10:17] 好\n",
        "line": f"2023/01/01（日）\n08:00\t甲\t{line}\n08:01\t乙\t在\n08:02\t甲\t好\n",
        "wechat-mail": f"“甲”和“乙”的聊天记录如下:\n\n--- 2024-1-1 ---\n\n甲 8:00\n\n{line}\n\n乙 8:01\n\n在\n",
        "hexchat": f"**** BEGIN LOGGING AT 1\n[10:00:00] <甲> {line}\n[10:00:10] <乙> 在\n",
        "imessage": f"Jan 01, 2023 10:00:00 AM\n甲\n{line}\n\nJan 01, 2023 10:01:00 AM\n乙\n在\n",
        "turns": f"你好\t{line}\n在吗\t在\n",
        "telegram": f"甲, [01.05.2024 10:00]\n{line}\n\n乙, [01.05.2024 10:01]\n在\n",
        "eou": f"你好 __eou__ {line} __eou__\n在吗 __eou__ 在 __eou__\n",
        "template": f"<|im_start|>user\n你好<|im_end|>\n<|im_start|>assistant\n{line}<|im_end|>\n",
        "parlai": f"text:{line}\tlabels:在\ntext:在吗\tlabels:{line}\n",
        "qqnt": f"2024-01-01 10:00:00 甲\n[文本]\n{line}\n\n2024-01-01 10:00:01 乙\n[文本]\n在\n",
        "qq-chat-exporter": f"甲:\n时间: 2024-01-01 10:00\n内容: {line}\n\n\n乙:\n时间: 2024-01-01 10:01\n内容: 在\n",
        "weflow": f"2024-01-01 10:00:00 '甲'\n{line}\n\n2024-01-01 10:00:01 '乙'\n在\n",
        "wechatexporter": f"甲 (2024-01-01 10:00:00):{line}\n乙 (2024-01-01 10:00:01):在\n",
        "ass": f"[Script Info]\n[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,Default,,0,0,0,,{line}\n",
    }[name]


def seconds(work: Callable[[], object]) -> float:
    """The CPU time of reading a text or cleaning a pair, which may be refused."""
    start = time.process_time()
    with contextlib.suppress(UserError):
        work()
    return time.process_time() - start


@pytest.mark.parametrize("name", ["none", *FORMATS])
def test_no_line_is_slow_to_read(tmp_path: Path, name: str) -> None:
    def read_line_of(unit: str) -> list[Pair]:
        path = written(tmp_path, "lines", document(name, (unit * LENGTH)[:LENGTH]))
        report = Report()
        options = ReadOptions(format=name if name == "turns" else None)  # which is never detected
        pairs = list(read(find_sources([str(path)])[0], report, options))
        assert report.formats == [name] or unit != PLAIN
        return pairs

    limit = 0.2 + SLOWEST * seconds(lambda: read_line_of(PLAIN))
    for unit in HOSTILE:
        assert seconds(functools.partial(read_line_of, unit)) < limit, unit


def test_no_line_is_slow_to_clean() -> None:
    settings = CorpusSettings(clean=tuple(rule for rule in (*TEXT_RULES, *PAIR_RULES) if rule != "simplified"))

    def clean_line_of(unit: str) -> None:
        line = (unit * LENGTH)[:LENGTH]
        assert list(clean_pairs([(f"x{line}x", "y", NEW)], 1, Report(), settings))

    limit = 0.2 + SLOWEST * seconds(lambda: clean_line_of(PLAIN))
    for unit in [*HOSTILE, *IN_CLEANING]:
        assert seconds(functools.partial(clean_line_of, unit)) < limit, unit


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

    limit = 0.3 + 8 * seconds(lambda: read_text_of(500_000))
    assert seconds(lambda: read_text_of(2_000_000)) < limit


def test_the_lines_below_a_label_are_bounded(tmp_path: Path) -> None:
    path = written(tmp_path, "long", "Q: a\nA: b\n" + "c\n" * MAX_BLOCK)
    ((_, answer, _),) = read(find_sources([str(path)])[0], Report(), ReadOptions(format="qa"))
    assert len(answer) == MAX_BLOCK + 1
