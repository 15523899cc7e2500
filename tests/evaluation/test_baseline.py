"""The baseline by retrieval, on tiny corpora."""

from pathlib import Path

import pytest

from chatbot.config.training import Settings
from chatbot.corpus.vocabulary import BYTES, Vocabulary
from chatbot.errors import UserError
from chatbot.evaluation.baseline import Baseline, corpus_of
from chatbot.evaluation.measures import Sample, samples_of
from chatbot.flags import compose

PAIRS = [
    ("今天天气怎么样", "下雨了"),
    ("你叫什么名字", "我叫小明"),
    ("你喜欢吃什么", "饺子"),
    ("你喜欢吃苹果吗", "喜欢"),
]


def test_reply_to_the_most_similar_question() -> None:
    samples = [Sample([], *pair) for pair in PAIRS]
    baseline = Baseline(samples)
    questions = ["明天的天气呢", "名字叫什么", "吃不吃苹果", "xyz"]
    assert [*map(baseline.reply, questions)] == ["下雨了", "我叫小明", "喜欢", "下雨了"]
    assert Baseline(samples[:1]).reply("") == "下雨了"


def test_training_pairs_of_an_attempt_exclude_its_validation_pairs(
    work_dir: Path,
) -> None:
    Path("pairs.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in [*PAIRS, PAIRS[0]]))
    Path("held_out.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in PAIRS[1:2]))
    settings = compose(Settings, data=("pairs.tsv",), validation="held_out.tsv")
    vocabulary = Vocabulary(BYTES)
    corpus = corpus_of(settings, vocabulary, "cache")
    expected = [PAIRS[0], *PAIRS[2:]]  # duplicates are dropped, too
    assert [sample[1:] for sample in samples_of(corpus)] == expected
    drawn = [sample[1:] for sample in samples_of(corpus, 2)]
    assert len(drawn) == 2
    assert [pair for pair in expected if pair in drawn] == drawn
    Path("pairs.tsv").unlink()
    with pytest.raises(UserError, match=r"--baseline: .*pairs\.tsv.*; give pairs with --baseline-data FILE"):
        corpus_of(settings, vocabulary, "cache")
