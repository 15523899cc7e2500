"""Presets: defaults that follow the number of training pairs, and that an attempt keeps."""

import json
from pathlib import Path
from typing import Any

import pytest

from chatbot.attempts.files import CONFIG, LAST
from chatbot.attempts.opening import write_attempt
from chatbot.attempts.settings import settings_over_config, stored_settings, train_settings
from chatbot.config.learning import LearningSettings
from chatbot.config.model import ModelSettings
from chatbot.config.run import PRESETS, TRANSFORMER_PRESET, base_batch, preset_for
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose, flags_of, replace
from chatbot.training import preset
from chatbot.training.data import Data, prepare

SMALL = {"copy": True, "ngrams": 3, "keep_prob": 0.8, "both_directions": "on"}


def test_values_of_presets_are_valid_defaults_that_flags_override() -> None:
    assert [preset_for(pairs) for pairs in (1, 49_999, 50_000, 299_999, 300_000)] == [
        *("small", "small", "medium", "medium", "large"),
    ]
    flags = flags_of(ModelSettings) | flags_of(LearningSettings)
    for values in (*PRESETS.values(), TRANSFORMER_PRESET):
        compose(Settings, **values)
        for name in values:
            flag = flags[name]
            assert flag.stored
            assert name != "max_length"  # changes the training pairs
            assert flag.kind is not bool or flag.default or flag.negatable
            stated = "off" if flag.default is False else f"{flag.default or 0:g}"
            assert flag.shown_default.startswith(f"set by --preset, or {stated}")


@pytest.fixture
def small(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A preset of small corpora that changes settings, and the flags of an attempt with such a corpus."""
    monkeypatch.setitem(PRESETS, "small", SMALL)
    held_out = pairs_file.with_name("held_out.tsv")
    held_out.write_text("甲甲甲\t丑\n", encoding="utf-8")
    return {"data": (str(pairs_file),), "validation": str(held_out), "vocabulary_size": 300}


def chosen(given: dict[str, Any]) -> dict[str, Any]:
    """The preset of an attempt with these flags, and what it sets."""
    return preset_of(prepare(settings_over_config(given)))


def preset_of(data: Data) -> dict[str, Any]:
    """What is chosen beside the cleaning, which the files decide."""
    return {name: value for name, value in data.chosen.items() if name != "clean"}


def test_preset_sets_what_is_not_given(small: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    data = prepare(settings_over_config(small))
    assert preset_of(data) == {"preset": "small", **SMALL}
    assert data.both_directions
    flags = "--copy --ngrams 3 --keep-prob 0.8 --both-directions on"
    pairs = data.description["pairs"]
    assert f"Preset small, for {pairs} pairs (--preset): {flags}.\n" in capsys.readouterr().out
    assert chosen({**small, "preset": "large"}) == {"preset": "large", **PRESETS["large"]}
    assert chosen({**small, "preset": "none"}) == {"preset": "none"}
    assert "Preset none" not in capsys.readouterr().out
    without = {**small, "validation": "none"}  # pairs that are learned by heart need no preset
    assert chosen(without) == {"preset": "none"}
    assert chosen({**without, "preset": "small"}) == {"preset": "small", **SMALL}


def test_transformer_gets_its_own_values(small: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """None of another architecture, so that none is said to be left out."""
    transformer = {**small, "architecture": "transformer", "learning_rate": 0.003}
    expected = {"preset": "medium", **PRESETS["medium"], **TRANSFORMER_PRESET}
    del expected["rnn_size"], expected["learning_rate"]
    assert chosen({**transformer, "preset": "medium"}) == expected
    assert "without" not in capsys.readouterr().out


def test_given_settings_stay(small: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.json").write_text(json.dumps({"keep_prob": 0.5}))
    flags = ["--no-copy", "--ngrams", "0", "--config", "own.json", "--data", *small["data"], "--vocabulary-size", "300"]
    flags += ["--validation", small["validation"]]
    assert preset_of(prepare(train_settings(flags))) == {"preset": "small", "both_directions": "on"}
    for excluding in ({"attention": "none"}, {"label_smoothing": 0.1}):
        capsys.readouterr()
        values = chosen({**small, **excluding})
        assert "copy" not in values
        assert values["ngrams"] == 3
        assert "on; without --copy, which conflicts with other settings.\n" in capsys.readouterr().out


def begin(given: dict[str, Any]) -> Settings:
    """Write an attempt with these flags, as if it had a checkpoint. Returns its settings, without the preset."""
    settings = settings_over_config(given)
    data = prepare(settings)
    write_attempt(replace(settings, **data.chosen), data.vocabulary, data.description)
    (settings.run.directory / LAST).touch()
    return settings


def test_attempt_keeps_what_its_preset_has_set(
    small: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = begin(small)
    kept = stored_settings(before.run.directory / CONFIG)
    assert (kept.run.preset, kept.model.copy, kept.model.ngrams, kept.model.keep_prob) == ("small", True, 3, 0.8)
    monkeypatch.setitem(PRESETS, "small", {"copy": False, "ngrams": 2, "embedding_size": 64})
    capsys.readouterr()
    settings_over_config(small)
    kept_flags = "--copy --ngrams 3 --keep-prob 0.8"
    assert capsys.readouterr().out == f"Settings of checkpoints/default/config.json: {kept_flags}\n"

    # `before` are the settings of a process that is started again after the first checkpoint.
    for settings in (settings_over_config({}), settings_over_config({"preset": "auto"}), before):
        settings = replace(settings, **prepare(settings).chosen)
        assert (settings.run.preset, settings.model) == ("small", kept.model)
    with pytest.raises(UserError, match="--preset small -> large"):
        prepare(settings_over_config({"preset": "large"}))
    assert settings_over_config({"keep_prob": 0.6}).model.keep_prob == 0.6


@pytest.mark.parametrize(
    ("given", "examples", "gpus", "expected"),
    [
        ({}, 10**6, 0, {}),
        ({}, 10**6, 1, {"batch_size": 512, "scale_learning_rate": "linear"}),
        ({}, 10**6, 3, {"batch_size": 384, "scale_learning_rate": "linear"}),
        ({}, 10**6, 8, {"batch_size": 512, "scale_learning_rate": "linear"}),  # four times the preset's 128
        ({}, 358_399, 4, {"batch_size": 256, "scale_learning_rate": "linear"}),  # an epoch keeps 700 steps
        ({}, 179_199, 4, {}),  # the preset has 128
        ({"preset": "none"}, 179_199, 2, {"batch_size": 128, "scale_learning_rate": "linear"}),
        ({}, 50, 4, {}),
        ({"learning_rate": 0.001}, 10**6, 1, {"batch_size": 512}),
        ({"scale_learning_rate": "none"}, 10**6, 1, {"batch_size": 512}),
        ({"batch_size": 128}, 10**6, 4, {}),
        ({"batch_tokens": 4096}, 10**6, 4, {}),
        ({"accumulate": 2}, 10**6, 4, {}),
        ({"model_parallel": True}, 10**6, 4, {}),
        ({"asynchronous": True}, 10**6, 4, {}),
    ],
)
def test_batches_are_as_large_as_gpus_and_pairs_allow(
    given: dict[str, Any], examples: int, gpus: int, expected: dict[str, Any]
) -> None:
    assert preset.choose_batch(settings_over_config({"preset": "large", **given}), examples, gpus) == expected


def test_fine_tuning_keeps_its_batches(work_dir: Path) -> None:
    settings = replace(settings_over_config({"preset": "large"}), init_from="other")
    assert preset.choose_batch(settings, 10**6, 4) == {}


def test_attempt_keeps_its_batches_on_other_devices(
    small: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On two GPUs, with the limits of a small corpus. The pairs of both directions count."""
    monkeypatch.setattr(preset, "PAIRS_PER_GPU", 8)
    monkeypatch.setattr(preset, "MIN_STEPS_PER_EPOCH", 1)
    monkeypatch.setitem(PRESETS, "small", {**SMALL, "batch_size": 8})
    settings = settings_over_config(small)
    data = prepare(settings, gpus=2)
    assert data.description["pairs"] < 16 <= 2 * data.description["pairs"]
    batches = "--scale-learning-rate linear --batch-size 16 (8 pairs for each of 2 GPUs, because fewer would keep"
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("Batches: "))
    assert line == f"Batches: {batches} it less busy). To train as on a CPU, add --batch-size 8."
    assert len(line) < 200
    settings = replace(settings, **data.chosen)
    assert (settings.learning.batch_size, settings.learning.scale_learning_rate) == (16, "linear")
    write_attempt(settings, data.vocabulary, data.description)
    (settings.run.directory / LAST).touch()
    for given in ({}, small):
        resumed = settings_over_config(given)
        resumed = replace(resumed, **prepare(resumed, gpus=1).chosen)
        assert (resumed.learning.batch_size, resumed.learning.scale_learning_rate) == (16, "linear")


def test_rates_refer_to_the_batches_of_the_preset() -> None:
    presets = [("none", "lstm"), ("auto", "lstm"), ("small", "lstm"), ("large", "lstm"), ("large", "transformer")]
    assert [base_batch(*names) for names in presets] == [64, 64, 64, 128, 128]
