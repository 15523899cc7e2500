"""The fluency of replies by n-grams, against a slow twin."""

import math
from pathlib import Path

import pytest

from chatbot import commands
from chatbot.config.corpus import LEAST_VOCABULARY, CorpusSettings
from chatbot.corpus.dataset import encode
from chatbot.corpus.files import training_files
from chatbot.corpus.selection import Selection
from chatbot.corpus.tokenizer import tokens_of
from chatbot.errors import UserError
from chatbot.evaluation.fluency import ORDER, Fluency
from tests.corpus.kneser_ney import SlowKneserNey, grams_of

REPLIES = ["丙乙", "甲乙丁丁", "乙丙甲", "丁乙丙丙", "甲乙丙"]


@pytest.fixture
def fluency(work_dir: Path) -> Fluency:
    Path("usual.tsv").write_text("".join(f"问\t{reply}\n" for reply in REPLIES), encoding="utf-8")
    settings = CorpusSettings(data=("usual.tsv",), columns=("1", "2"), clean=("none",), tokenizer="char", cache="cache")
    return Fluency(encode(training_files(settings), Selection(), 1000), tokens_of(settings))


def test_fluency_equals_the_slow_twin(fluency: Fluency) -> None:
    """Each character after those before it. The end of a text counts, and an empty one is its end alone."""
    begin, end, size = 0, 1, LEAST_VOCABULARY + len({*"".join(REPLIES), "问"})
    slow = SlowKneserNey(grams_of([[*map(ord, reply)] for reply in REPLIES], ORDER, begin, end), ORDER, size)
    texts = ["甲乙丙", "丁", "", "乙乙乙乙"]
    grams = grams_of([[*map(ord, text)] for text in texts], ORDER, begin, end)
    nats = -sum(math.log(slow.probability(tuple(history), token)) for *history, token in grams)
    assert fluency(texts) == pytest.approx(nats / (3 + 1 + 4), rel=1e-5)


def test_usual_texts_have_fewer_nats(fluency: Fluency) -> None:
    usual, turned, foreign = map(fluency, (["甲乙丙"], ["丙甲丁"], ["x y😀"]))
    assert usual is not None
    assert turned is not None
    assert foreign is not None
    assert usual < turned < foreign
    assert fluency(["", " "]) is fluency([]) is None


def test_corpus_that_cannot_be_read_is_an_error(work_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.evaluation.start.trained_directory", Path)
    Path("x.tsv").touch()
    command = ["evaluation", "--data", "x.tsv", "--beam-size", "1", "--fluency-corpus", "none.tsv"]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(UserError, match=r"^none\.tsv: no such file"):
        commands.run("evaluate")
