"""Files of settings in YAML: what init-config writes, and what --config reads."""

import re
from pathlib import Path

import pytest

from chatbot.config.run import settings_of_presets
from chatbot.config.stored import train_settings
from chatbot.config.template import init_config, template
from chatbot.config.training import TRAIN, Settings
from chatbot.errors import UserError
from chatbot.flags import compose


def test_file_sets_nothing_until_it_is_edited(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init_config(["own.yaml"]) == 0
    assert "then run python train.py --config own.yaml\n" in capsys.readouterr().out
    settings = train_settings(["--config", "own.yaml"])
    assert settings == compose(Settings, config="own.yaml", not_given=settings_of_presets())


def test_file_has_every_setting_with_its_default(work_dir: Path) -> None:
    lines = re.findall(r"^#([a-z_]+): .*$", template(), re.MULTILINE)
    assert sorted([*lines, "config"]) == sorted(TRAIN.fields)
    assert all(line.startswith("#") for line in template().splitlines() if line)
    Path("own.yaml").write_text(re.sub(r"^#([a-z_]+:)", r"\1", template(), flags=re.MULTILINE), encoding="utf-8")
    assert train_settings(["--config", "own.yaml"]) == compose(Settings, config="own.yaml")


def test_values_are_those_of_flags(work_dir: Path) -> None:
    """YAML itself would make numbers and truth values of most of them."""
    values = {
        "gpus: 0": ["--gpus", "0"],
        "attempt: 007": ["--attempt", "007"],
        "both_directions: on": ["--both-directions", "on"],
        "time-limit: 1:30": ["--time-limit", "1:30"],
        "learning_rate: 1e-3": ["--learning-rate", "0.001"],
        "bidirectional: false": ["--no-bidirectional"],
        "data: 微博.tsv": ["--data", "微博.tsv"],
        "data: [a.tsv, 'b c.tsv']\ncolumns:\n- 1\n- 2": ["--data", "a.tsv", "b c.tsv", "--columns", "1", "2"],
        "steps: null\nme: ~\nprobe:": [],
    }
    for text, flags in values.items():
        Path("own.yml").write_text(text, encoding="utf-8")
        settings = train_settings(["--config", "own.yml", "--quiet"])
        expected = train_settings([*flags, "--quiet"])
        given = settings.run.not_given ^ expected.run.not_given
        assert not given
        assert compose_without_config(settings) == compose_without_config(expected), text


def compose_without_config(settings: Settings) -> str:
    return repr(settings).replace("config='own.yml'", "config=None")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rnn_size: many", "own.yaml: --rnn-size 'many': expected a whole number"),
        ("rnn_size: [1, 2]", "own.yaml: --rnn-size ['1', '2']: expected a whole number"),
        ("data: [[a]]", "own.yaml: --data ['a']: expected text"),
        ("copy: maybe", "own.yaml: --copy 'maybe': expected true or false"),
        ("cell: rnn", "own.yaml: --cell rnn: choose one of lstm, gru"),
        ("keep_prob: 0", "own.yaml: --keep-prob 0.0: must be above 0"),
        ("rnnsize: 3", "own.yaml: unknown setting 'rnnsize'"),
        ("config: other.yaml", "own.yaml: config: a file names no other file of settings"),
        ("a: [", "own.yaml, line 1: not YAML in UTF-8; write NAME: VALUE on each line"),
        ("just words", "own.yaml: no settings; write NAME: VALUE on each line"),
        ("- a\n- b", "own.yaml: no settings; write NAME: VALUE on each line"),
        ("[" * 100_000, "own.yaml: not YAML"),
        ("data: a\x00", "own.yaml: not YAML"),
        (None, "own.yaml: settings cannot be read (No such file or directory)"),
    ],
)
def test_mistakes_name_the_file(work_dir: Path, text: str | None, message: str) -> None:
    if text is not None:
        Path("own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        train_settings(["--config", "own.yaml"])
    assert str(error.value).startswith(message)
    assert len(str(error.value)) <= 200


def test_text_in_another_encoding_is_refused(work_dir: Path) -> None:
    Path("own.yaml").write_bytes("data: 微博.tsv".encode("gb18030"))
    with pytest.raises(UserError, match=r"^own\.yaml: not YAML in UTF-8"):
        train_settings(["--config", "own.yaml"])


def test_no_file_is_replaced(work_dir: Path) -> None:
    Path("own.yaml").write_text("seed: 3\n")
    with pytest.raises(UserError, match=r"^init-config own\.yaml: exists already; give another name"):
        init_config(["own.yaml"])
    assert Path("own.yaml").read_text() == "seed: 3\n"
    with pytest.raises(UserError, match=r"^init-config own\.json: give a name that ends in \.yaml"):
        init_config(["own.json"])
    assert not Path("own.json").exists()
    with pytest.raises(FileNotFoundError):  # which the command reports with the path
        init_config(["none/own.yaml"])
