"""Files of settings in YAML: what init-config writes, and what --config reads."""

import re
from pathlib import Path

import pytest

from chatbot.attempts.settings import train_settings
from chatbot.commands import run
from chatbot.config.run import chosen_settings
from chatbot.config.template import template
from chatbot.config.training import TRAIN, Settings
from chatbot.errors import UserError
from chatbot.flags import compose, replace


def test_file_sets_nothing_until_it_is_edited(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init-config", ["own.yaml"]) == 0
    assert "then run python train.py --config own.yaml\n" in capsys.readouterr().out
    settings = train_settings(["--config", "own.yaml"])
    assert settings == compose(Settings, config="own.yaml", not_given=chosen_settings())


def test_file_has_every_setting_with_its_default(work_dir: Path) -> None:
    lines = re.findall(r"^#([a-z_]+): .*$", template(), re.MULTILINE)
    assert sorted([*lines, "config"]) == sorted(TRAIN.flags)
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
        assert replace(settings, config=None) == expected, text


@pytest.mark.parametrize("name", ["own.yaml", "own.json"])
def test_deeply_nested_files_are_refused(work_dir: Path, name: str) -> None:
    Path(name).write_text("[" * 10_000, encoding="utf-8")
    with pytest.raises(UserError, match=f"^{name}: not {name[4:].upper()}; write NAME: VALUE on each line$"):
        train_settings(["--config", name])


def test_json_is_a_part_of_yaml(work_dir: Path) -> None:
    """With tabs, an escaped emoji, no spaces, and an end of the line within an object."""
    emoji, data = r'"\ud83d\ude00"', r'["a.tsv","b\/c.tsv"]'
    text = '"learning_rate":1E-3,"copy":true,"steps":null}'
    Path("own.json").write_text(f'{{\n\t"me":{emoji}\n\t,"data" : {data}, {text}')
    flags = ["--me", "😀", "--data", "a.tsv", "b/c.tsv", "--learning-rate", "0.001", "--copy", "--quiet"]
    assert replace(train_settings(["--config", "own.json", "--quiet"]), config=None) == train_settings(flags)


def test_file_in_another_encoding_is_refused(work_dir: Path) -> None:
    Path("own.yaml").write_bytes("data: 微博.tsv".encode("gb18030"))
    with pytest.raises(UserError, match=r"^--config own\.yaml: not UTF-8; save it in that encoding$"):
        train_settings(["--config", "own.yaml"])


def test_no_file_is_replaced(work_dir: Path) -> None:
    Path("own.yaml").write_text("seed: 3\n")
    with pytest.raises(UserError, match=r"^init-config own\.yaml: exists already; give another name"):
        run("init-config", ["own.yaml"])
    assert Path("own.yaml").read_text() == "seed: 3\n"
