"""A validation has the same values for any number of towers, and when memory runs out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from chatbot.corpus.dataset import Corpus
from chatbot.errors import UserError
from chatbot.evaluation import likelihood
from chatbot.evaluation.likelihood import Likelihood, Scorer
from chatbot.inference import replier
from chatbot.training.data import prepare
from chatbot.training.devices.towers import Parts, Tower
from chatbot.training.validation import Validator, devices_of
from tests.training.small_run import small_settings, small_validator

SHORTAGE = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")


def validators(folder: Path, chat_file: Path, *towers: Sequence[Tower]) -> tuple[list[Validator], Corpus]:
    """A validator on each of several groups of towers, of the same model, and 40 pairs to validate on."""
    lines = chat_file.read_text().splitlines(keepends=True)
    files = [folder / name for name in ("training.tsv", "validation.tsv")]
    for file, part in zip(files, (lines[:20], lines[20:60]), strict=True):
        file.write_text("".join(part))
    settings = small_settings(data=(str(files[0]),), validation=str(files[1]), cache=str(folder), max_length=9)
    data = prepare(settings)
    assert data.validation is not None
    return [small_validator(settings, data, group) for group in towers], data.validation


def test_values_are_the_same_for_any_number_of_towers_and_in_little_memory(
    tmp_path: Path,
    chat_file: Path,
    cpus: list[Tower],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(likelihood, "POSITIONS", 256)  # each tower has several batches
    monkeypatch.setattr(replier, "BATCH", 8)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    inputs, most_pairs, devices = Scorer._inputs, 100, list[str]()

    def recorded_inputs(self: Scorer, pairs: Any, rows: Any) -> Any:
        devices.append(tf.zeros([]).device[-5:])
        if len(rows) > most_pairs:
            raise SHORTAGE
        return inputs(self, pairs, rows)

    monkeypatch.setattr(Scorer, "_inputs", recorded_inputs)
    monkeypatch.chdir(tmp_path)
    (alone, shared), corpus = validators(tmp_path, chat_file, cpus[:1], cpus[:3])
    expected = alone.validate(corpus)
    assert {*devices} == {"CPU:0"}
    validation = shared.validate(corpus)
    assert {*devices} == {"CPU:0", "CPU:1", "CPU:2"}
    assert validation.values == pytest.approx(expected.values, rel=1e-6)
    assert validation.replies == expected.replies
    assert len(set(expected.replies)) > 1

    most_pairs = 2
    capsys.readouterr()
    validation = shared.validate(corpus)
    assert validation.values == pytest.approx(expected.values, rel=1e-5)
    assert {*devices[-20:]} == {"CPU:0"}
    assert capsys.readouterr().err.splitlines()[0] == (
        "Warning: out of memory in validation, which goes on with cpu_0 alone, in batches of 128 positions."
    )


def test_memory_for_less_than_a_pair_is_an_error(
    tmp_path: Path, chat_file: Path, cpus: list[Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any) -> Likelihood:
        raise SHORTAGE

    monkeypatch.setattr(Scorer, "__call__", short)
    monkeypatch.chdir(tmp_path)
    (validator,), corpus = validators(tmp_path, chat_file, cpus[:2])
    with pytest.raises(
        UserError,
        match=r"out of memory in validation, with one pair at a time; free memory on the device: then",
    ):
        validator.validate(corpus)


def test_towers_that_share_a_validation(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Tower(f"gpu_{i}", f"/GPU:{i}", "GPU", 1) for i in range(9)]
    assert devices_of(gpus) == [gpu.device for gpu in gpus]
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert devices_of(cpus) == ["/CPU:0", "/CPU:1", "/CPU:2"]
    spread = Tower("gpu_0+gpu_1", "/GPU:1", "GPU", None, parts=Parts("/GPU:0", "/GPU:1", "/GPU:1"))
    assert devices_of([spread]) == []
