"""Lines that were made to be slow: no step of reading takes more than linear time."""

import contextlib
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from chatbot.config.corpus import PAIR_RULES, TEXT_RULES, CorpusSettings
from chatbot.corpus.chunks import clean_pairs
from chatbot.corpus.reading.conversation import NEW, Pair
from chatbot.corpus.reading.detect import FORMATS
from chatbot.corpus.reading.open.sources import find_sources
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report
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
    message = {"type": "message", "date": "2024-01-01T10:00:00", "from": "甲", "from_id": "user1", "text": line}
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
        "lines": f"你好\n{line}\n\n在吗\n在\n",
        "messages": "time,sender,content\n" + f"2024-01-01 10:00:00,甲,{line}\n2024-01-01 10:00:01,乙,在\n" * 2,
        "whatsapp": f"1/1/20, 10:00 - A: {line}\n1/1/20, 10:01 - B: 在\n1/1/20, 10:02 - A: 好\n",
        "telegram": json.dumps({"name": "甲", "messages": [message, {**message, "from_id": "user2"}]}),
        "qq": f"2024-01-01 10:00:00 甲(10000)\n{line}\n\n2024-01-01 10:00:01 乙(10001)\n在\n",
        "srt": f"1\n00:00:01,000 --> 00:00:02,000\n{line}\n\n2\n00:00:02,500 --> 00:00:03,000\n在\n",
        "discord": f"[01/01/2023 10:00 AM] 甲\n{line}\n\n[01/01/2023 10:01 AM] 乙\n在\n",
        "kakaotalk": f"[甲] [오전 10:15] {line}\n[乙] [오전 10:16] 在\n[甲] [오전 10:17] 好\n",
        "line": f"2023/01/01（日）\n08:00\t甲\t{line}\n08:01\t乙\t在\n08:02\t甲\t好\n",
        "imessage": f"Jan 01, 2023 10:00:00 AM\n甲\n{line}\n\nJan 01, 2023 10:01:00 AM\n乙\n在\n",
        "speakers": f"甲：{line}\n乙：在\n甲：好\n乙：嗯\n",
        "headings": f"## 在吗？\n{line}\n## 你好吗？\n好\n## 吃了吗？\n吃了\n",
        "eou": f"你好 __eou__ {line} __eou__\n在吗 __eou__ 在 __eou__\n",
        "ubuntu": f"Context,Utterance,Label\n你好 __eou__ __eot__,{line} __eou__,1\n在 __eou__ __eot__,好 __eou__,1\n",
        "template": f"<|im_start|>user\n你好<|im_end|>\n<|im_start|>assistant\n{line}<|im_end|>\n",
        "ass": f"[Events]\nFormat: Start, End, Text\nDialogue: 0:00:01.00,0:00:02.00,{line}\n",
    }[name]


def seconds(work: Callable[[], object]) -> float:
    """The CPU time of reading a text or cleaning a pair, which may be refused."""
    start = time.process_time()
    with contextlib.suppress(UserError):
        work()
    return time.process_time() - start


@pytest.mark.parametrize("name", ["none", *FORMATS])
def test_no_line_is_slow_to_read(tmp_path: Path, name: str) -> None:
    """Formats are detected, too, but for the one that is asked for."""
    options = ReadOptions(format="speakers" if name == "speakers" else None)

    def read_line_of(unit: str) -> list[Pair]:
        path = written(tmp_path, "lines", document(name, (unit * LENGTH)[:LENGTH]))
        report = Report()
        pairs = list(read(find_sources([str(path)])[0], report, options))
        assert report.formats == [name] or unit != PLAIN
        return pairs

    limit = 0.1 + SLOWEST * seconds(lambda: read_line_of(PLAIN))
    for unit in HOSTILE:
        assert seconds(functools.partial(read_line_of, unit)) < limit, unit


def test_no_line_is_slow_to_clean() -> None:
    settings = CorpusSettings(clean=tuple(rule for rule in (*TEXT_RULES, *PAIR_RULES) if rule != "simplified"))

    def clean_line_of(unit: str) -> None:
        line = (unit * LENGTH)[:LENGTH]
        assert list(clean_pairs([(f"x{line}x", "y", NEW)], 1, Report(), settings))

    limit = 0.1 + SLOWEST * seconds(lambda: clean_line_of(PLAIN))
    for unit in [*HOSTILE, *IN_CLEANING]:
        assert seconds(functools.partial(clean_line_of, unit)) < limit, unit
