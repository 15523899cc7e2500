"""End to end: training with the defaults, then greedy replies from the checkpoint."""

import json
import re
import time
from collections import defaultdict
from pathlib import Path

import pytest

from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_parts
from tests.commands import run


@pytest.mark.slow
def test_default_run_memorises_chatterbot_corpus(work_dir: Path) -> None:
    """At least 95% of the questions with exactly one answer get exactly that answer, by greedy search."""
    start = time.perf_counter()
    completed = run("train.py", "--steps", "800")  # of 1,000 by default
    minutes = (time.perf_counter() - start) / 60
    assert completed.returncode == 0, completed.stderr.decode()[-500:]
    lines = completed.stdout.decode().splitlines()
    assert sum(" -> " in line for line in lines) == 6  # three parsed pairs before, three replies after
    assert lines[-1] == "Talk to it: python chat.py --attempt default"
    assert b"\r" not in completed.stdout + completed.stderr, "no progress bar in a pipe"
    assert any(re.match(r"    800 +\d\.\d{4} +[\d,]+ +\d+% ", line) for line in lines)
    assert Path("checkpoints/default/curves.png").stat().st_size > 10_000

    answers = defaultdict(set)
    for question, answer, *_ in read(find_parts([]).training[0], Report()):
        answers[question].add(answer)
    expected = {q: next(iter(a)) for q, a in answers.items() if len(a) == 1}
    assert len(expected) == 412
    chat = run("chat.py", "--beam-size", "1", stdin="".join(f"{q}\n" for q in expected).encode())
    replies = chat.stdout.decode().splitlines()
    exact = sum(reply == answer for reply, answer in zip(replies, expected.values(), strict=True))
    last = json.loads(Path("checkpoints/default/metrics.jsonl").read_text().splitlines()[-1])
    print(f"{exact / len(expected):.1%} exact after {minutes:.1f} minutes, loss {last['loss']:.3f}")
    assert exact / len(expected) >= 0.95
