"""Settings that are refused: the commands, the Python API and a file of settings say the same line."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import chatbot
from chatbot.api import NAMES
from chatbot.attempts.settings import stored_settings
from chatbot.config.corpus import ENCODE
from chatbot.flags import settings_by_name
from tests.commands import ROOT
from tests.in_process import call

REFUSED = yaml.safe_load((ROOT / "tests/data/refused.yaml").read_text(encoding="utf-8"))


def each(part: str, names: str) -> pytest.MarkDecorator:
    """Of each entry of a part of refused.yaml."""
    return pytest.mark.parametrize(names.split(), REFUSED[part], ids=lambda value: None)


def words_of(keywords: dict[str, Any]) -> list[str]:
    """The flags of keyword arguments."""
    words = []
    for name, value in keywords.items():
        values = value if isinstance(value, list) else [] if value is True else [value]
        words += ["--" + name.replace("_", "-"), *map(str, values)]
    return words


def refused(line: str, *arguments: str) -> str:
    """The line that a command prints on standard error, without the reference to its help."""
    called = call(line, *arguments)
    assert called.code == 2, called
    assert called.err.startswith("error: ")
    assert called.err.count("\n") == 1
    return called.err.removeprefix("error: ").rstrip().split(" (see ")[0]


def as_python(line: str) -> str:
    """The line with the names of keywords in place of flags."""
    with pytest.raises(chatbot.UserError) as error, settings_by_name(NAMES):
        raise chatbot.UserError(line, ["detail"])
    assert error.value.details == ("detail",)
    return str(error.value)


@pytest.fixture(autouse=True)
def _files(work_dir: Path) -> None:
    Path("empty.tsv").touch()
    Path("folder").mkdir()
    Path("pairs.tsv").write_text("你好 你好 你好\t你好 你好\n早上好 早上好\t早 早 早\n", encoding="utf-8")


@each("training", "keywords message")
def test_training_is_refused_with_the_same_line_everywhere(keywords: dict[str, Any], message: str) -> None:
    line = refused("train.py", *words_of(keywords))
    assert line.startswith(message)
    assert refused("duida train", *words_of(keywords)).replace("duida train", "python train.py") == line
    if keywords.keys() <= ENCODE.flags.keys() - {"validation"}:  # which takes files without a flag
        assert refused("duida data encode", *(word for word in words_of(keywords) if word != "--data")) == line
    with pytest.raises(chatbot.UserError) as error:
        chatbot.train(**keywords)
    of_python = as_python(line)
    assert str(error.value).split(" (see ")[0] == of_python
    Path("own.json").write_text(json.dumps(keywords), encoding="utf-8")
    assert refused("train.py --config own.json") in (line, f"own.json, line 1: {of_python}")
    assert not Path("checkpoints").exists()


@each("files", "name text message")
def test_mistakes_in_a_file_of_settings_name_the_file_and_the_line(name: str, text: str, message: str) -> None:
    Path(name).write_text(text, encoding="utf-8")
    line = refused(f"train.py --config {name}")
    assert line.startswith(f"{name}{message}")
    assert len(line) <= 200


@each("attempts", "text message")
def test_damaged_settings_of_an_attempt_are_named_with_their_path(text: str, message: str) -> None:
    file = Path("config.json")
    file.write_text(text)
    with pytest.raises(chatbot.UserError) as error:
        stored_settings(file)
    assert str(error.value).startswith(f"config.json{message}")
    file.unlink()
    with pytest.raises(chatbot.UserError, match=r"^config.json: settings cannot be read \(No such file or directory\)"):
        stored_settings(file)


@each("decoding", "keywords message")
def test_decoding_is_refused_with_the_same_line_everywhere(keywords: dict[str, Any], message: str) -> None:
    line = refused("chat.py", *words_of(keywords))
    assert line.startswith(message)
    if keywords.keys().isdisjoint(["n_best", "min_score", "fallback"]):  # which the evaluation lacks
        assert refused("chatbot.evaluation --data x", *words_of(keywords)) == line
    with pytest.raises(chatbot.UserError) as error:
        chatbot.load("nowhere", **keywords)
    assert str(error.value) == as_python(line)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"seed": None}, "seed None: expected a whole number"),
        ({"batch_size": True}, "batch_size True: expected a whole number"),
        ({"copy": 1}, "copy 1: expected true or false"),
        ({"attempt": 7}, "attempt 7: expected text"),
        ({"data": []}, "argument data: expected at least one argument"),
        ({"data": ["a", 3]}, "data 3: expected text"),
        ({"columns": ["a"]}, "columns a: give two, the question's and the answer's"),
        ({"data": ["\udcff.tsv"]}, r"data '\udcff.tsv': expected printable text"),
        ({"rnnsize": 8}, "rnnsize: no such argument; the nearest is rnn_size"),
        ({"config": "none.json"}, "config none.json: cannot be read (No such file or directory); check the path"),
    ],
)
def test_values_that_only_python_can_give_are_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(chatbot.UserError) as error:
        chatbot.train(**keywords)
    assert str(error.value) == message


@each("lines", "line message")
def test_command_lines_are_refused_in_one_line(line: str, message: str) -> None:
    called = call(line)
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"error: {message}")
    assert called.err.count("\n") == 1
    assert not Path("checkpoints").exists()


@each("names", "message shown")
def test_flags_are_named_as_keywords_outside_commands(message: str, shown: str) -> None:
    assert as_python(message) == shown
