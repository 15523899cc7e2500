"""A new attempt begins with the weights, the tokens and the model of another one."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from chatbot.attempts.settings import settings_over_config
from chatbot.attempts.trained import load_trained
from chatbot.config.attempts import RATINGS
from chatbot.corpus.vocabulary import BYTES, SPECIALS, Vocabulary, load_vocabulary
from chatbot.errors import UserError
from chatbot.retrieval.ratings import append_rating, rating_record
from chatbot.training.data import extend_vocabulary, prepare
from chatbot.training.loop import train as train_run
from chatbot.training.new_model import build_model, transfer_rows
from chatbot.training.run import set_initial_weights
from tests.training.attempts import metrics
from tests.training.small_run import SMALL, open_with, without_replies
from tests.training.untraced_update import UntracedUpdate, train_untraced

TUNED = {"data": ("new.tsv",), "attempt": "tuned", "init_from": "base", "freeze": "encoder"}


def train(**settings: object) -> None:
    """Train as the command does with these flags."""
    composed = settings_over_config(settings)
    with without_replies():
        train_run(open_with(UntracedUpdate, composed, prepare(composed)))


def test_vocabulary_keeps_the_old_tokens_after_those_of_the_pairs(
    work_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (work_dir / "vocabulary.txt").write_bytes(Vocabulary(["▁", "你", "好", "再见", *BYTES]).content())
    grown = extend_vocabulary(work_dir, Vocabulary(["好", "▁", "新", *BYTES]))
    assert grown.tokens == [*SPECIALS, "好", "▁", "新", "你", "再见", *BYTES]
    assert ": 1 new token in the pairs; 2 others are kept." in capsys.readouterr().out


def test_rows_follow_their_tokens() -> None:
    """A new word has the mean of its characters' rows, a new character that of its bytes."""
    old = Vocabulary(["你", "好", "再见", *BYTES])
    new = Vocabulary(["再见", "你好", "好", "新", *BYTES])
    other = np.arange(2.0 * len(old), dtype=np.float32).reshape(-1, 2)
    own = -np.ones([len(new), 2], np.float32)
    rows = transfer_rows(own, new, other, old)
    first = len(SPECIALS)
    np.testing.assert_array_equal(rows[:first], other[:first])
    np.testing.assert_array_equal(rows[first + np.array([0, 2])], other[first + np.array([2, 1])])
    np.testing.assert_array_equal(rows[first + 1], other[[first, first + 1]].mean(axis=0))
    utf8 = np.array(list("新".encode()))
    np.testing.assert_array_equal(rows[first + 3], other[old.first_byte + utf8].mean(axis=0))
    np.testing.assert_array_equal(rows[new.first_byte :], other[old.first_byte :])
    biases = transfer_rows(own[:, 0], new, other[:, 0], old)
    assert biases[first : first + 4].tolist() == [other[first + 2, 0], -1, other[first + 1, 0], -1]


def test_fine_tuned_attempt_is_independent_of_its_start(pairs_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It learns other pairs with new characters; the encoder is frozen. It is resumed."""
    Path("words.txt").write_text("甲甲\n")
    train(**{**SMALL, "log_every": 5}, data=(str(pairs_file),), attempt="base", steps=1, dictionary="words.txt")
    Path("words.txt").unlink()
    Path("new.tsv").write_text("甲，新！\t旧丑\n新？旧。\t新\n旧！新？\t旧丑\n" * 2)
    capsys.readouterr()
    train(**TUNED, clean=("control",), steps=3, learning_rate=0.1)
    out = capsys.readouterr().out
    assert all(flags in out for flags in ("base/dictionary.txt", "--rnn-size 16 --embedding-size 8"))
    assert re.search(r"Starting from the weights of .*base: [1-9] new tokens? in the pairs; \d+ others are kept", out)
    base, tuned = (load_trained(Path("checkpoints", name)) for name in ("base", "tuned"))
    assert {"新", "旧", "癸"} <= set(load_vocabulary(Path("checkpoints/tuned/vocabulary.txt")).tokens)
    for part, changed in (("encoder", False), ("decoder", True)):
        for before, after in zip(*(getattr(t.model, part).trainable_variables for t in (base, tuned)), strict=True):
            assert np.array_equal(before.numpy(), after.numpy()) != changed

    settings = settings_over_config({**TUNED, "attempt": "again"})
    data = prepare(settings)
    model = build_model(settings.model, len(data.vocabulary), seed=1)
    set_initial_weights(model, settings, data)
    rows = [vocabulary.tokens.index("癸") for vocabulary in (base.vocabulary, data.vocabulary)]
    assert rows[0] != rows[1]
    np.testing.assert_array_equal(
        base.model.embedding.embeddings.numpy()[rows[0]], model.embedding.embeddings.numpy()[rows[1]]
    )

    shutil.rmtree("checkpoints/base")
    train(attempt="tuned", steps=4)
    assert metrics("tuned")[-1]["step"] == 4
    with pytest.raises(UserError, match="--init-from base -> other"):
        train(**{**TUNED, "init_from": "other"})


def test_unsuitable_init_from_is_refused(work_dir: Path) -> None:
    with pytest.raises(UserError, match=r"--init-from base: no such attempt in .*checkpoints; there are none"):
        settings_over_config(TUNED)
    Path("checkpoints/base").mkdir(parents=True)
    Path("new.tsv").write_text("问\t答\n")
    Path("checkpoints/base/config.json").write_text('{"rnn_size": 16, "max_length": 20, "keep_prob": 0.9}')
    inherited = settings_over_config(TUNED).model
    assert (inherited.rnn_size, inherited.max_length, inherited.keep_prob) == (16, 20, 0.9)
    sizes = settings_over_config({**TUNED, "rnn_size": 32, "num_layers": 2, "max_length": 9, "keep_prob": 0.5})
    message = "an attempt of other sizes: --rnn-size 16 -> 32; --num-layers 1 -> 2; leave these flags out"
    Path("new.tsv").unlink()  # no pair is read before
    with pytest.raises(UserError, match=message):
        prepare(sizes)
    other = settings_over_config({**TUNED, "architecture": "transformer"})
    with pytest.raises(UserError, match="of other sizes: --architecture recurrent -> transformer; leave these flags"):
        prepare(other)


def test_ratings_are_learned_from_a_copy(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the guide says; ratings go on, and the attempt is resumed, which is not possible with another architecture."""
    Path("my_pairs.tsv").write_text("你好\t你好呀\n再见\t明天见\n" * 4, encoding="utf-8")
    train_untraced(data=("my_pairs.tsv",), attempt="weibo", steps=1)
    for question, reply, rating in (("你好", "早", "good"), ("再见", "呵呵", "bad")):
        append_rating(RATINGS, rating_record(question, reply, [], rating, "weibo", written_to=""))  # type: ignore[arg-type]
    for data in ("data/ratings.jsonl", "data", "."):
        with pytest.raises(UserError, match=rf"--data {data}: data/ratings.jsonl changes with each rating") as refused:
            train_untraced(data=("my_pairs.tsv", data), attempt="rated", init_from="weibo", steps=1)
        assert len(str(refused.value)) < 200
    shutil.copy(RATINGS, "data/rated.jsonl")
    flags = {"data": ("my_pairs.tsv", "data/rated.jsonl"), "attempt": "rated", "init_from": "weibo"}
    train_untraced(**flags, steps=1)
    assert "Training on 3 pairs" in capsys.readouterr().out
    append_rating(RATINGS, rating_record("你好", "您好", [], "good", "rated", written_to=""))
    assert train_untraced(**flags, steps=2)[1].step == 2
    # The model of the flags is larger than the checkpoint, which does not make it a damaged one.
    other = settings_over_config({"attempt": "rated", "architecture": "transformer", "embedding_size": 512})
    message = "rated was started with other settings: --architecture recurrent -> transformer; --embedding-size"
    with pytest.raises(UserError, match=message):
        prepare(other)
