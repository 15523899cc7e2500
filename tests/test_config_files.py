"""Files of settings in YAML: what init-config writes, and what --config reads."""

import re
from pathlib import Path

import pytest

from chatbot.commands import run
from chatbot.config.run import settings_of_presets
from chatbot.config.stored import train_settings
from chatbot.config.template import template
from chatbot.config.training import TRAIN, Settings
from chatbot.errors import UserError
from chatbot.flags import compose, replace


def test_file_sets_nothing_until_it_is_edited(work_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("init-config", ["own.yaml"]) == 0
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
        assert replace(settings, config=None) == expected, text


MISTAKES = {
    "own.yaml": {
        "seed: 2\n\nrnn_size: many": ", line 3: rnn_size 'many': expected a whole number",
        "rnn-size: [1, 2]": ", line 1: rnn-size ['1', '2']: expected a whole number",
        "data: [[a]]": ", line 1: data ['a']: expected text",
        "copy: maybe": ", line 1: copy 'maybe': expected true or false",
        "cell: rnn": ", line 1: cell rnn: choose one of lstm, gru",
        "keep_prob: 0": ", line 1: keep_prob 0.0: must be above 0",
        "# size\nrnnsize: 3": ", line 2: unknown setting 'rnnsize'; the nearest is rnn_size; correct it, or remove it",
        "[a, b]: 3": ", line 1: unknown setting \"['a', 'b']\"; correct it, or remove it",
        "seed: 1\nconfig: other.yaml": ", line 2: config: a file names no other file of settings",
        "batch_size: 1\nseed: 1\nbatch-size: 2": ", line 3: batch-size is set twice in this file; remove one of",
        "seed: 1\na: [": ", line 2: not YAML (expected the node content, but found '<stream end>'); write NAME: VALUE",
        "seed = 1\nsteps: 2": ", line 2: not YAML (mapping values are not allowed here); write NAME: VALUE on each",
        "just words": ": no settings; write NAME: VALUE on each line",
        "- a\n- b": ": no settings; write NAME: VALUE on each line",
        "[" * 100_000: ": not YAML",
        "data: a\x00": ": not YAML",
    },
    "own.json": {
        '{"seed": 1,\n "steps": "many"}': ", line 2: steps 'many': expected a whole number",
        '{"seed": 1,\n "steps": true}': ", line 2: steps 'true': expected a whole number",
        '{\n"rnnsize": 3}': ", line 2: unknown setting 'rnnsize'; the nearest is rnn_size; correct it, or remove it",
        '{"config": "other.json"}': ", line 1: config: a file names no other file of settings",
        '{"seed": 1,\n"steps": 9,\n"seed" : 2}': ", line 3: seed is set twice in this file; remove one of",
        '{"seed": 1\n"steps": 9}': ", line 2: not JSON (expected ',' or '}', but got",
        '{"data": {"a": 1}}': ", line 1: data {'a': '1'}: expected text",
        "[]": ": no settings; write NAME: VALUE on each line",
        "[" * 100_000: ": not JSON",
    },
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in MISTAKES.items() for text in texts])
def test_mistakes_name_the_file_and_the_line(work_dir: Path, name: str, text: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as error:
        train_settings(["--config", name])
    assert str(error.value).startswith(f"{name}{MISTAKES[name][text]}")
    assert len(str(error.value)) <= 200


def test_json_is_a_part_of_yaml(work_dir: Path) -> None:
    """With tabs, an escaped emoji, no spaces, and an end of the line within an object."""
    emoji, data = r'"\ud83d\ude00"', r'["a.tsv","b\/c.tsv"]'
    text = '"learning_rate":1E-3,"copy":true,"steps":null}'
    Path("own.json").write_text(f'{{\n\t"me":{emoji}\n\t,"data" : {data}, {text}')
    flags = ["--me", "😀", "--data", "a.tsv", "b/c.tsv", "--learning-rate", "0.001", "--copy", "--quiet"]
    assert replace(train_settings(["--config", "own.json", "--quiet"]), config=None) == train_settings(flags)


def test_files_that_cannot_be_read_are_refused(work_dir: Path) -> None:
    Path("own.yaml").write_bytes("data: 微博.tsv".encode("gb18030"))
    with pytest.raises(UserError, match=r"^--config own\.yaml: not UTF-8; save it in that encoding$"):
        train_settings(["--config", "own.yaml"])
    with pytest.raises(
        UserError, match=r"^--config none\.yaml: cannot be read \(No such file or directory\); check the"
    ):
        train_settings(["--config", "none.yaml"])


def test_no_file_is_replaced(work_dir: Path) -> None:
    Path("own.yaml").write_text("seed: 3\n")
    with pytest.raises(UserError, match=r"^init-config own\.yaml: exists already; give another name"):
        run("init-config", ["own.yaml"])
    assert Path("own.yaml").read_text() == "seed: 3\n"
    with pytest.raises(UserError, match=r"^init-config own\.json: give a name that ends in \.yaml"):
        run("init-config", ["own.json"])
    assert not Path("own.json").exists()
    with pytest.raises(FileNotFoundError):  # which the command reports with the path
        run("init-config", ["none/own.yaml"])
