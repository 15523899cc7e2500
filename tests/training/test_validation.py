"""Validation: its values for any number of towers and in little memory, measures of replies, replies that collapse."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from chatbot.corpus.dataset import Corpus
from chatbot.errors import UserError
from chatbot.evaluation import likelihood
from chatbot.evaluation.likelihood import Likelihood, Scorer
from chatbot.evaluation.measures import top_share
from chatbot.inference import replier
from chatbot.training.data import prepare
from chatbot.training.devices.towers import Tower, spread
from chatbot.training.validation import Collapse, Validator, validation_devices
from tests.training.attempts import metrics
from tests.training.small_run import small_settings, small_validator
from tests.training.untraced_update import train_untraced

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
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    inputs, most_pairs, devices = Scorer._inputs, 100, list[str]()

    def recorded_inputs(self: Scorer, pairs: Any, rows: Any) -> Any:
        devices.append(tf.zeros([]).device[-5:])
        if len(rows) > most_pairs:
            raise SHORTAGE
        return inputs(self, pairs, rows)

    monkeypatch.setattr(Scorer, "_inputs", recorded_inputs)
    monkeypatch.chdir(tmp_path)
    (alone, shared), corpus = validators(tmp_path, chat_file, cpus[:1], cpus)
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
        "Warning: out of memory in validation; continuing on cpu_0 alone, in batches of 128 positions."
    )


def test_towers_that_share_a_validation(cpus: list[Tower], monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Tower(f"gpu_{i}", f"/GPU:{i}", "GPU", 1) for i in range(9)]
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert validation_devices(gpus) == [gpu.device for gpu in gpus]
    assert validation_devices(spread(cpus[:2])) == []


def test_too_little_memory_for_one_pair_is_an_error(
    tmp_path: Path, chat_file: Path, cpus: list[Tower], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any) -> Likelihood:
        raise SHORTAGE

    monkeypatch.setattr(Scorer, "__call__", short)
    monkeypatch.chdir(tmp_path)
    (validator,), corpus = validators(tmp_path, chat_file, cpus[:2])
    with pytest.raises(
        UserError,
        match=r"out of memory in validation, with one pair at a time; free memory on the device, then",
    ):
        validator.validate(corpus)


DIFFERENT = [str(i) for i in range(200)]


def with_common(number: int) -> list[str]:
    """200 replies, of which this many are equal."""
    return ["嗯"] * number + DIFFERENT[number:]


def test_collapse_is_reported_once_until_replies_recover() -> None:
    collapse = Collapse(top_share(DIFFERENT, 10))  # their ten most common are 5%
    warnings = [collapse.warning(with_common(number)) for number in (2, 52, 80, 200, 40, 100)]
    assert [warning is not None for warning in warnings] == [False, True, False, False, False, True]
    assert warnings[1] == "replies collapse: the ten most common make up 30% of 200 replies, but 5% of the references"
    # Few or common references never do.
    assert Collapse(top_share(["好", "是"], 10)).warning(["嗯"] * 2) is None
    assert Collapse(top_share(with_common(170), 10)).warning(["嗯"] * 200) is None


@pytest.fixture
def held_out(held_out: Path) -> Path:
    """30 validation pairs with different answers, which decide."""
    held_out.write_text("".join(f"甲{i}\t{chr(0x4E00 + i)}\n" for i in range(30)))
    return held_out


def test_replies_are_measured_at_each_validation(
    pairs_file: Path, held_out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An untrained model gives one reply to all questions; so the measure that chooses the best never improves."""
    train_untraced(validation=str(held_out), validate_every=1, steps=3, best_by="relevance_at_1")
    printed = capsys.readouterr()
    assert (
        printed.err.count(
            "Warning: replies collapse: the ten most common make up 100% of 30 replies, but 33% of the references."
        )
        == 1
    )
    assert "nats per character, 0.1000 relevance_at_1, the best so far" in printed.out
    assert "nats per character, 0.1000 relevance_at_1, no improvement (2 in a row)" in printed.out
    last = metrics()[-1]
    assert (last["validation.relevance_at_1"], last["validation.top_reply_share"]) == (pytest.approx(0.1), 1.0)
    assert "validation.question_nats_per_character" not in last
    best = json.loads(Path("checkpoints/default/best").read_text())
    assert (best["step"], best["best_by"], best["best_value"]) == (1, "relevance_at_1", pytest.approx(0.1))
    assert best["best_nats"] == metrics()[0]["validation.nats_per_character"]


def test_measured_questions_are_spread_over_the_validation_pairs(
    pairs_file: Path, held_out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatbot.training.data.MEASURED", 10)
    settings = small_settings(data=(str(pairs_file),), validation=str(held_out))
    measured = prepare(settings).measured
    assert len({sample.question for sample in measured}) == 10
    assert measured == prepare(settings).measured
    assert prepare(small_settings(data=(str(pairs_file),))).measured == []


def test_likelihood_of_questions_needs_both_directions(pairs_file: Path, held_out: Path) -> None:
    """With --both-directions auto, only the data decide whether both are learned."""
    chosen = {"best_by": "question_nats_per_character", "data": (str(pairs_file),), "validation": str(held_out)}
    assert prepare(small_settings(**chosen)).both_directions
    held_out.write_text("甲\t乙\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chatbot.training.data.MIN_DECISIVE_PAIRS", 50)
        with pytest.raises(UserError, match=r"--best-by question_nats_per_character: .*--both-directions on"):
            prepare(small_settings(**chosen))
