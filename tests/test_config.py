"""Settings: one declaration gives the flag, its check and its key in config.json."""

import dataclasses
import json
from pathlib import Path

import pytest

from chatbot.config.stored import changed_settings, storable, stored_settings, train_settings
from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose, fields_of, flatten, replace


def test_flags_override_file_and_file_overrides_defaults(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"rnn_size": 64, "seed": 9, "data": ["a.tsv", "b.tsv"]}))
    settings = train_settings(["--config", str(file), "--seed", "5"])
    assert (settings.model.rnn_size, settings.learning.seed, settings.corpus.data) == (64, 5, ("a.tsv", "b.tsv"))
    assert settings.learning.batch_size == Settings().learning.batch_size


def test_repeated_data_flags_are_joined() -> None:
    assert train_settings(["--data", "a", "b", "--data", "c"]).corpus.data == ("a", "b", "c")


def test_epochs_on_the_command_line_replace_steps_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"steps": 64}))
    assert train_settings(["--config", str(file), "--epochs", "2"]).learning.steps is None


def test_settings_survive_config_json(tmp_path: Path) -> None:
    settings = compose(Settings, data=("a.tsv",), rnn_size=64, bidirectional=False, steps=7)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(storable(settings)))
    assert stored_settings(file) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"keep_prob": 0.0}, "--keep-prob 0.0: must be above 0"),
        ({"keep_prob": 1.5}, "--keep-prob 1.5: must be at most 1"),
        ({"learning_rate": float("nan")}, "--learning-rate nan: expected a finite number"),
        ({"batch_size": 0}, "--batch-size 0: must be at least 1"),
        ({"batch_size": True}, "--batch-size True: int expected"),
        ({"batch_size": "many"}, "--batch-size 'many': int expected"),
        ({"cell": "rnn"}, "--cell rnn: choose one of lstm, gru"),
        ({"rnn_size": 5}, "--rnn-size 5: both directions share it"),
        ({"attempt": "../x"}, "without slashes"),
        ({"attempt": ".."}, "without slashes"),
        ({"attempt": "a/b"}, "without slashes"),
        ({"attempt": ""}, "expected printable text"),
        ({"seed": None}, "--seed None: int expected"),
        ({"max_gradient_norm": float("inf")}, "--max-gradient-norm inf: expected a finite number"),
        ({"validation": ""}, "--validation '': expected printable text"),
        ({"data": ("\udcff.tsv",)}, "expected printable text"),
        ({"attempt": "字" * 100}, "a short name"),
        ({"steps": 1, "epochs": 1}, "give one of the two"),
    ],
)
def test_invalid_value_is_reported_with_its_flag(values: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        compose(Settings, **values)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "a JSON object of settings expected"),
        ('{"data": 3}', "a JSON object of settings expected"),
        ('{"rnnsize": 3}', "unknown setting 'rnnsize'"),
        ('{"rnn_size": 0}', "must be at least 1"),
        ('{"data": [3]}', "str expected"),
        ("[" * 100_000, "not JSON"),
        (None, "cannot be read"),
    ],
)
def test_damaged_config_is_reported_with_its_path(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError) as error:
        stored_settings(file)
    assert message in str(error.value)
    assert str(file) in str(error.value)


def test_only_fixed_settings_count_as_changed() -> None:
    before = compose(Settings, rnn_size=64, log_every=5, learning_rate=0.1)
    after = compose(Settings, rnn_size=128, log_every=9, learning_rate=0.2)
    assert changed_settings(before, after) == ["--rnn-size 64 -> 128"]


def test_flatten_inverts_compose() -> None:
    settings = compose(Settings, rnn_size=64, data=("a.tsv",), towers=2)
    assert (settings.model.rnn_size, settings.corpus.data, settings.parallel.towers) == (64, ("a.tsv",), 2)
    assert compose(Settings, **flatten(settings)) == settings
    assert replace(settings, steps=3).learning.steps == 3
    with pytest.raises(TypeError, match="unknown settings: rnnsize"):
        compose(Settings, rnnsize=3)


def test_flags_are_unique() -> None:
    parts = [fields_of(field.type) for field in dataclasses.fields(Settings)]
    assert sum(map(len, parts)) == len(fields_of(Settings))
