"""What is measured of a model, against slow twins."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.encoding.encoded import encoded, ragged
from chatbot.corpus.encoding.vocabulary import BOS, EOS, Vocabulary
from chatbot.evaluation.likelihood import Likelihood, Scorer
from chatbot.evaluation.metrics import bleu, distinct, top_reply_share
from chatbot.flags import compose, replace
from chatbot.inference.replier import Replier
from chatbot.model.seq2seq import Seq2Seq, built_model

VOCABULARY = Vocabulary(["你好", "你", "好", "吗", "\u2581"])
SETTINGS = compose(Settings, rnn_size=8, embedding_size=6, max_length=6)


@pytest.fixture(scope="module")
def model() -> Seq2Seq:
    """An untrained model."""
    return built_model(SETTINGS.model, len(VOCABULARY), SETTINGS.learning.seed)


def test_every_token_of_whole_replies_is_scored(model: Seq2Seq) -> None:
    """One reply is far longer than max_length; each token is scored by itself, in float64."""
    pairs = [(["你好"], ["好"] * 30), (["你", "好", "\u2581吗"], ["你", "\u2581好"]), (["他"], ["她"])]
    sources, targets = (ragged([VOCABULARY.ids(pair[side]) for pair in pairs]) for side in (0, 1))
    data = encoded(sources, targets, np.array([30, 2, 1]))
    expected = 0.0
    for i in range(len(pairs)):
        state = model.encode(tf.constant(data.sources.row(i)[None]))
        last = BOS
        for token in [*data.targets.row(i).tolist(), EOS]:
            logits, state = model.step(state, tf.constant([last]))
            row = logits[0].numpy().astype(np.float64)
            expected += np.log(np.exp(row - row.max()).sum()) + row.max() - row[token]
            last = token
    found = Scorer(model)([data.select([0]), data.select([1, 2])])
    assert found.nats == pytest.approx(expected, rel=1e-5)
    assert found.tokens == 31 + 4 + 2
    assert found.characters == 30 + 2 + 1


def test_likelihood() -> None:
    found = Likelihood(nats=6.0, tokens=3, characters=4)
    assert (found.nats_per_token, found.nats_per_character) == (2.0, 1.5)
    assert found.perplexity == pytest.approx(math.exp(2.0))


def test_metrics() -> None:
    assert bleu(["我今天很好啊"], ["我今天很好啊"]) == pytest.approx(100.0)
    assert bleu(["我今天很好啊"], ["他明日不坏吗"]) < 10
    assert distinct([["a", "b", "a"], ["a"]], 1) == 2 / 4
    assert distinct([["a", "b", "a"], ["a"]], 2) == 2 / 2
    assert distinct([], 1) == 0
    assert top_reply_share(["嗯", "嗯", "好", "嗯"]) == 0.75
    assert top_reply_share([]) == 0


@pytest.mark.parametrize("beam_size", [1, 4])
def test_questions_are_answered_alike_alone_and_in_a_batch_on_one_trace(model: Seq2Seq, beam_size: int) -> None:
    replier = Replier(model, VOCABULARY, SETTINGS, beam_size)
    questions = ["你好", "你好 吗", "吗" * 100, "未知"]
    together = replier.best(questions)
    assert together == [replier.best([question])[0] for question in questions]
    assert all(together)
    assert replier.traces == 1


def test_a_text_is_offered_once(model: Seq2Seq) -> None:
    """ "你好" is one word or two characters: the same text."""
    replier = Replier(model, VOCABULARY, replace(SETTINGS, max_length=3), beam_size=40)
    (found,) = replier.replies_to([replier.ids("你好")])
    texts, scores = [reply.text for reply in found], [reply.score for reply in found]
    assert "你好" in texts
    assert len(set(texts)) == len(texts)
    assert scores == sorted(scores, reverse=True)
    assert np.isfinite(scores).all()


def test_unk_is_never_said(model: Seq2Seq) -> None:
    model.bias.assign(tf.one_hot([3], len(VOCABULARY), 50.0)[0])
    try:
        for beam_size in (1, 3):
            search = Replier(model, VOCABULARY, SETTINGS, beam_size)._search
            ids, _ = search(tf.constant([[5]]))
            assert not {0, 1, 3, 4} & set(ids[0, 0].numpy()[: int(tf.reduce_sum(tf.cast(ids[0, 0] > 0, tf.int32)))])
    finally:
        model.bias.assign(tf.zeros(len(VOCABULARY)))


def test_the_command_prints_one_json_object(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from chatbot.evaluation.__main__ import main
    from tests.training.test_trainer import trained

    Path("pairs.tsv").write_text("你好\t你好呀\n吃了吗\t吃了\n没有\n")
    trained(1, data=("pairs.tsv",), steps=1)
    monkeypatch.setattr("sys.argv", ["evaluation", "--data", "pairs.tsv"])
    capsys.readouterr()
    assert main() == 0
    out = capsys.readouterr()
    found = json.loads(out.out.splitlines()[-1])
    assert list(found) == [
        *("pairs", "tokens", "characters", "perplexity", "nats_per_character"),
        *("bleu", "distinct_1", "distinct_2", "top_reply_share"),
    ]
    assert (found["pairs"], found["characters"]) == (2, 5)
    assert "lines without a tab: 1" in out.err
