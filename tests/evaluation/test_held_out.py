"""How held-out pairs are read, and the warning that a model was trained on them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chatbot.config.evaluation import HeldOutSettings
from chatbot.config.training import Settings
from chatbot.evaluation.held_out import reading_settings, warning_of
from chatbot.flags import compose
from chatbot.retrieval.index import Retrieval
from chatbot.retrieval.indexing import write_retrieval
from tests.corpus.encoded import encoded_corpus, settings


def test_held_out_files_are_read_by_the_flags_of_the_evaluation() -> None:
    trained: Any = SimpleNamespace(settings=compose(Settings, map="@", me="甲", clean=("nfkc",)))
    given = HeldOutSettings(data=("chat.txt",), head="{name}: ", me="乙", cache="elsewhere")
    read = reading_settings(trained, given)
    assert (read.map, read.head, read.me) == (None, "{name}: ", "乙")
    assert (read.clean, read.cache) == (("nfkc",), "elsewhere")


@pytest.mark.parametrize(
    ("known", "message"), [(1, None), (2, "2 of 40 pairs of --data (5%) are training pairs of this")]
)
def test_training_pairs_among_those_to_evaluate_are_noticed(work_dir: Path, known: int, message: str | None) -> None:
    pairs = [(f"问题{number}", f"回答{number}") for number in range(80)]
    corpus = encoded_corpus(settings(work_dir, pairs, validation="none"))
    first = [corpus.shards[0].select(range(40))]
    write_retrieval(Path("index"), first, corpus.vocabulary, "pairs", max_pairs=100, cache=Path("cache"))
    held_out: Any = SimpleNamespace(shards=[corpus.shards[0].select(range(40 - known, 80 - known))])
    trained: Any = SimpleNamespace(retrieval=Retrieval(Path("index"), corpus.vocabulary), vocabulary=corpus.vocabulary)
    warning = warning_of(trained, held_out, [])
    assert (warning is None) == (message is None)
    if warning is not None:
        assert f"Warning: {message}" in warning.english
        assert "警告：--data 的 40 个问答对中有 2 个（5%）参与过该模型的训练" in warning.chinese
