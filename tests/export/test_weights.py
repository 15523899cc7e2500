"""Weights in smaller types: their rounding, their size and their loss."""

import contextlib
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from chatbot.attempts.trained import load_trained
from chatbot.config.export import ExportSettings
from chatbot.corpus.shards import Shards
from chatbot.corpus.vocabulary import BOS, EOS
from chatbot.decoding.array_functions import NumpyFunctions
from chatbot.durable import size_of
from chatbot.evaluation.likelihood import Scorer
from chatbot.export.exported import load_export
from chatbot.export.model import restore_weight, store_weight
from chatbot.export.write import export, held_out_pairs
from chatbot.inference.onnx_model import OnnxModel
from tests.export.untrained import write_attempt


@pytest.mark.parametrize("rows", [True, False])
def test_int8_has_a_scale_for_each_output(rows: bool) -> None:
    """The error is at most half a scale, and what has been rounded stays as it is."""
    weight = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32) * [[1.0, 10.0, 0.0]]
    weight = weight.T if rows else weight
    rounded = store_weight(weight.astype(np.float32), "int8", rows)
    scales = np.abs(weight).max(axis=1 if rows else 0, keepdims=True) / 127
    assert rounded.values.dtype == np.int8
    assert (np.abs(restore_weight(rounded) - weight) <= scales / 2 + 1e-6).all()
    np.testing.assert_array_equal(
        restore_weight(store_weight(restore_weight(rounded), "int8", rows)), restore_weight(rounded)
    )


def test_vectors_and_float32_stay_and_float16_stays_finite() -> None:
    weight = np.array([1e-9, 1e9], np.float32)
    assert restore_weight(store_weight(weight, "int8", False)) is not None
    np.testing.assert_array_equal(restore_weight(store_weight(weight, "int8", False)), weight)
    np.testing.assert_array_equal(restore_weight(store_weight(weight[None], "float32", False)), weight[None])
    np.testing.assert_array_equal(restore_weight(store_weight(weight[None], "float16", False)), [[0, 65504]])


class Exported(NamedTuple):
    """An attempt, its export with weights in int8 beside it, and the lines that were printed."""

    attempt: Path
    settings: ExportSettings
    folder: Path
    printed: list[str]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """An export of an untrained attempt, and pairs."""
    folder, printed = tmp_path_factory.mktemp("weights"), io.StringIO()
    (folder / "pairs.tsv").write_text("你好\t你好 a\n今天好吗\t好\n他們\t我\n" + "好" * 60 + "\t我\n", encoding="utf-8")
    attempt = write_attempt(folder / "tiny", bidirectional=False, rnn_size=16, embedding_size=32)
    settings = ExportSettings("tiny", "onnx", "int8", data=(str(folder / "pairs.tsv"),))
    with contextlib.redirect_stdout(printed):
        export(settings, attempt, folder / "onnx")
    return Exported(attempt, settings, folder / "onnx", printed.getvalue().splitlines())


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


def test_printed_loss_is_that_of_the_export(exported: Exported) -> None:
    """TensorFlow with the stored values, and the runtime of the export, compute the same."""
    size, loss = exported.printed
    assert size == f"{exported.folder}: onnx, weights in int8, {size_of(exported.folder) / 1e6:.1f} MB"
    trained = load_trained(exported.attempt)
    shards = held_out_pairs(trained, exported.settings)
    assert shards is not None
    exact = Scorer(trained.model)(shards).nats_per_character
    of_export = loss_of(load_export(exported.folder).model, shards)
    assert loss == f"{of_export:.4f} nats per character on 4 held-out pairs"
    assert 1e-4 < abs(of_export - exact) < 0.1
