"""`train.py --init-from FOLDER` with a pretrained model: a small random BART, and a T5, of pretrained/make.py."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from chatbot.attempts.settings import settings_over_config
from chatbot.attempts.trained import load_trained
from chatbot.chat.loading import load_model
from chatbot.commands import run
from chatbot.config.decoding import DecodingSettings
from chatbot.corpus.pieces import TOKENIZER
from chatbot.durable import read_json
from chatbot.errors import UserError
from chatbot.model.seq2seq import Seq2Seq
from chatbot.pretrained.folder import CONFIG, pretrained_model
from chatbot.pretrained.tokens import piece_vocabulary
from chatbot.pretrained.weights import read_weights
from chatbot.training.data import prepare
from tests.commands import ROOT
from tests.inference.messages import replies_of
from tests.pretrained.tokenizer_files import fitting_tokenizer
from tests.training.attempts import metrics, weights
from tests.training.small_run import TOWERS, train_on

FLAGS = {
    "data": ("pairs.tsv",),
    "columns": ("1", "2"),
    "init_from": "there",
    "max_length": 12,
    "batch_size": 6,
    "learning_rate": 0.01,
    "log_every": 1,
    "precision": "float32",
}
PAIRS = [("丆万", "丈三"), ("上下丌", "不"), ("与丏", "丐丑丒"), ("专", "且丕"), ("世丗丘", "丙业"), ("丛东", "丝")]


def train(number_of_towers: int = 1, **changes: object) -> None:
    """Train as the command does with FLAGS, with these changes."""
    assert train_on(TOWERS[:number_of_towers], settings_over_config({**FLAGS, **changes})) == 0


@pytest.fixture(params=["bart", "t5"])
def there(request: pytest.FixtureRequest, work_dir: Path) -> Path:
    """The folder of a pretrained model, and pairs.tsv."""
    folder = Path(shutil.copytree(ROOT / "tests/pretrained/models" / request.param, "there"))
    fitting_tokenizer(read_json(folder / CONFIG), folder)
    Path("pairs.tsv").write_text("".join(f"{q}\t{a}\n" for q, a in PAIRS), encoding="utf-8")
    return folder


def test_attempt_starts_from_a_pretrained_model_and_is_independent_of_it(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two towers train as one does. What is resumed is as if it had not stopped. It goes back as it was trained."""
    train(attempt="whole", steps=4)
    assert (
        "Starting from the pretrained model in there: 43 tokens; texts begin with no special token."
        in capsys.readouterr().out
    )
    train(attempt="resumed", steps=2)
    train(2, attempt="towers", steps=4, keep_prob=1.0)
    train(attempt="alone", steps=4, keep_prob=1.0)
    vocabulary, _ = piece_vocabulary(there / TOKENIZER, read_json(there / CONFIG))
    shutil.rmtree(there)
    train(attempt="resumed", steps=4)
    for one, other in zip(weights("whole"), weights("resumed"), strict=True):
        np.testing.assert_array_equal(one, other)
    for ours, twin in zip(metrics("towers"), metrics("alone"), strict=True):
        assert ours["loss"] == pytest.approx(twin["loss"], rel=1e-5)

    directory = Path("checkpoints/whole")
    trained = load_trained(directory)
    assert trained.vocabulary.fingerprint() == vocabulary.fingerprint()
    responder = load_model(directory, DecodingSettings(retrieve="none"), ratings=None).responder
    assert all(replies_of(responder, ["丆万", "专"]))
    for more in ([], ["--overwrite"]):
        run("export", ["whole", "--format", "transformers", "--output", "back", *more])
    back = pretrained_model("back")
    assert back is not None
    again, rows = piece_vocabulary(back.tokenizer(), back.config)
    model = Seq2Seq(trained.settings.model, len(again))
    read_weights(model, back, rows)
    texts = [*trained.vocabulary.texts]
    assert [text for text in again.texts if text] == [text for text in texts if text]
    for one, other in zip(model.trainable_variables, trained.model.trainable_variables, strict=True):
        if one.shape == other.shape:  # not those of tokens, of which there is one more
            np.testing.assert_array_equal(one, other)

    train(attempt="further", steps=1, init_from="whole")
    assert metrics("further")[0]["loss"] < metrics("whole")[0]["loss"]
    flags = {name: value for name, value in FLAGS.items() if name != "learning_rate"}
    further = settings_over_config({**flags, "init_from": "further"})
    assert further.learning.learning_rate == 0.01  # not that of training from scratch
    with pytest.raises(UserError, match="--both-directions: a pretrained model learns only replies"):
        settings_over_config({**flags, "init_from": "further", "both_directions": "on"})
    changes = {"max_length": 9, "recompute_activations": True, "keep_prob": 0.5}
    assert settings_over_config({**flags, "init_from": "further", **changes}).model.max_length == 9
    for name, value in {"tokenizer": "jieba", "dictionary": "words.txt", "vocabulary_size": 500}.items():
        with pytest.raises(UserError, match=f"{value}: differs from the pretrained model in .*further; leave it out"):
            settings_over_config({**flags, "init_from": "further", name: value})


def test_pairs_are_learned_by_heart(there: Path) -> None:
    train(attempt="heart", steps=400, learning_rate=0.01, keep_prob=1.0, log_every=100)
    responder = load_model(Path("checkpoints/heart"), DecodingSettings(retrieve="none"), ratings=None).responder
    assert replies_of(responder, [question for question, _ in PAIRS]) == [answer for _, answer in PAIRS]


def test_preset_does_not_override_the_pretrained_model(there: Path) -> None:
    """Its rate would be that of training from scratch, twenty times as large."""
    flags = {name: value for name, value in FLAGS.items() if name != "learning_rate"}
    settings = settings_over_config({**flags, "preset": "small"})
    assert settings.learning.learning_rate == 5e-5
    chosen = prepare(settings).chosen
    assert chosen["warm_up"] == 300
    assert not {"learning_rate", "keep_prob", "num_layers"} & chosen.keys()


def test_only_replies_are_learned(there: Path) -> None:
    """Its questions and replies end otherwise, so that the other direction would not be what it has learned."""
    Path("held_out.tsv").write_text("".join(f"丆{chr(0x4E08 + i % 20)}\t丈\n" for i in range(60)), encoding="utf-8")
    flags = {**FLAGS, "validation": "held_out.tsv", "preset": "small", "both_directions": "auto"}
    assert not prepare(settings_over_config(flags)).both_directions


def test_flags_that_a_pretrained_model_excludes(there: Path) -> None:
    assert settings_over_config({**FLAGS, "keep_prob": 0.5}).model.keep_prob == 0.5
    for flags, message in (
        ({"copy": True}, "--copy: not available in a pretrained model; leave it out"),
        ({"embedding_size": 64}, "--embedding-size 64: differs from the pretrained model in there; leave it out"),
        ({"vocabulary_size": 500}, "--vocabulary-size 500: differs from the pretrained model in there; leave it out"),
        ({"tokenizer": "char"}, "--tokenizer char: differs from the pretrained model in there; leave it out"),
        ({"tied_embeddings": False}, "--no-tied-embeddings: differs from the pretrained model"),
        ({"both_directions": "on"}, "--both-directions: a pretrained model learns only replies; leave it out"),
        ({"history": 1}, "--history: a pretrained model has no marks of turns; leave it out"),
    ):
        with pytest.raises(UserError, match=message):
            settings_over_config({**FLAGS, **flags})
    with pytest.raises(UserError, match=r"--tokenizer pieces: needs a pretrained model; give --init-from FOLDER"):
        settings_over_config({"data": ("pairs.tsv",), "tokenizer": "pieces"})
