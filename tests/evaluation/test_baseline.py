"""The baseline by retrieval, on tiny corpora."""

import json
import re
from pathlib import Path

import pytest

from chatbot.config.corpus import CorpusSettings
from chatbot.config.training import Settings
from chatbot.corpus.reading.open.sources import find_sources
from chatbot.errors import UserError
from chatbot.evaluation import baseline as baseline_module
from chatbot.evaluation.__main__ import main
from chatbot.evaluation.baseline import Baseline, pairs_of, training_pairs
from chatbot.flags import compose
from tests.training.small_run import train_small

PAIRS = [
    ("今天天气怎么样", "下雨了"),
    ("你叫什么名字", "我叫小明"),
    ("你喜欢吃什么", "饺子"),
    ("你喜欢吃苹果吗", "喜欢"),
]


def test_reply_to_the_most_similar_question() -> None:
    baseline = Baseline(PAIRS)
    questions = ["明天的天气呢", "名字叫什么", "吃不吃苹果", "xyz"]
    assert baseline.replies(questions) == ["下雨了", "我叫小明", "喜欢", "下雨了"]
    assert Baseline(PAIRS[:1]).reply("") == "下雨了"


def test_training_pairs_of_an_attempt_exclude_its_validation_pairs(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("pairs.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in [*PAIRS, PAIRS[0]]))
    Path("held_out.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in PAIRS[1:2]))
    settings = compose(Settings, data=("pairs.tsv",), validation="held_out.tsv")
    assert training_pairs(settings, "cache") == [PAIRS[0], *PAIRS[2:]]  # duplicates are dropped, too
    everything = pairs_of(find_sources(["pairs.tsv"]), CorpusSettings(clean=("none",)))
    assert everything == [*PAIRS, PAIRS[0]]
    monkeypatch.setattr(baseline_module, "MOST_PAIRS", 2)
    assert len(training_pairs(settings, "cache")) == 2
    Path("pairs.tsv").unlink()
    with pytest.raises(UserError, match=r"--baseline: .*pairs\.tsv.*; give pairs with --baseline-data FILE"):
        training_pairs(settings, "cache")


def test_command_measures_the_baseline(
    work_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A baseline that has the held-out pairs answers with their references."""
    Path("pairs.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in PAIRS[:2]))
    Path("held_out.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in PAIRS))
    train_small(1, data=("pairs.tsv",), steps=1)
    files = ["--data", "held_out.tsv", "--baseline-data", "held_out.tsv", "--report", "r.html"]
    monkeypatch.setattr("sys.argv", ["evaluation", *files])
    capsys.readouterr()
    assert main() == 0
    printed = capsys.readouterr()
    assert re.search(r"^baseline +\d", printed.err, re.MULTILINE)
    assert json.loads(printed.out.splitlines()[-1])["baseline"]["chrf"] == pytest.approx(100)
    assert "<td>饺子" in Path("r.html").read_text(encoding="utf-8")
