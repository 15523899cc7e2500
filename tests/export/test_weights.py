"""Weights in smaller types: their rounding, their size and their loss."""

from pathlib import Path

import numpy as np
import pytest

from chatbot.config.export import ExportSettings
from chatbot.corpus.shards import Shards
from chatbot.corpus.vocabulary import BOS, EOS
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.evaluation.likelihood import Scorer
from chatbot.export.manifest import size_of
from chatbot.export.model import restored, stored
from chatbot.export.runtime import OnnxModel, load_export
from chatbot.export.write import export, held_out_pairs
from chatbot.model.saved import load_trained
from tests.export.untrained import write_attempt


@pytest.mark.parametrize("rows", [True, False])
def test_int8_has_a_scale_for_each_output(rows: bool) -> None:
    """The error is at most half a scale, and what has been rounded stays as it is."""
    weight = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32) * [[1.0, 10.0, 0.0]]
    weight = weight.T if rows else weight
    rounded = stored(weight.astype(np.float32), "int8", rows)
    scales = np.abs(weight).max(axis=1 if rows else 0, keepdims=True) / 127
    assert rounded.values.dtype == np.int8
    assert (np.abs(restored(rounded) - weight) <= scales / 2 + 1e-6).all()
    np.testing.assert_array_equal(restored(stored(restored(rounded), "int8", rows)), restored(rounded))


def test_vectors_and_float32_stay_and_float16_stays_finite() -> None:
    weight = np.array([1e-9, 1e9], np.float32)
    assert restored(stored(weight, "int8", False)) is not None
    np.testing.assert_array_equal(restored(stored(weight, "int8", False)), weight)
    np.testing.assert_array_equal(restored(stored(weight[None], "float32", False)), weight[None])
    np.testing.assert_array_equal(restored(stored(weight[None], "float16", False)), [[0, 65504]])


@pytest.fixture(scope="module")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights")
    (folder / "pairs.tsv").write_text("你好\t你好 a\n今天好吗\t好\n他們\t我\n" + "好" * 60 + "\t我\n", encoding="utf-8")
    return write_attempt(folder / "tiny", bidirectional=False, rnn_size=16, embedding_size=32)


def loss_of(model: OnnxModel, shards: Shards) -> float:
    """The nats per character by an export, one pair at a time."""
    nats = 0.0
    for pairs in shards:
        for row in range(len(pairs)):
            state, last = model.encode([pairs.sources.row(row).tolist()]), BOS
            for following in (*pairs.targets.row(row).tolist(), EOS):
                logits, state = model.step(state, np.array([last]))
                nats -= float(NumpyFunctions.log_softmax(logits)[0, following])
                last = following
    return nats / sum(int(pairs.characters.sum()) for pairs in shards)


def test_printed_loss_is_that_of_the_export(attempt: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TensorFlow with the stored values, and the runtime of the export, compute the same."""
    pairs, folder = (str(attempt.with_name("pairs.tsv")),), attempt.with_name("onnx")
    settings = ExportSettings("tiny", "onnx", "int8", data=pairs)
    export(settings, attempt, folder)
    size, loss = capsys.readouterr().out.splitlines()
    assert size == f"{folder}: onnx, weights in int8, {size_of(folder) / 1e6:.1f} MB"
    trained = load_trained(attempt)
    shards = held_out_pairs(trained, settings)
    assert shards is not None
    exact = Scorer(trained.model)(shards).nats_per_character
    of_export = loss_of(load_export(folder).model, shards)
    assert loss == f"{of_export:.4f} nats per character on 4 held-out pairs"
    assert 1e-4 < abs(of_export - exact) < 0.1
