"""The Python API: its documented examples, and the lines that it shares with the commands."""

import doctest
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import chatbot
import chatbot.api
from chatbot import commands
from tests.commands import ENVIRONMENT

SIZES: dict[str, Any] = {"rnn_size": 8, "embedding_size": 8, "steps": 2}
PAIRS = "你好\t你好呀\n早上好\t早\n"


@pytest.fixture(scope="module", autouse=True)
def _devices() -> None:
    """Make the logical devices of conftest.py now: training in this process would make its own."""
    tf.config.list_logical_devices()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pairs.tsv and the attempt checkpoints/weibo of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pairs.tsv").write_text(PAIRS, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = chatbot.train(data="pairs.tsv", attempt="weibo", **SIZES)
    assert result.stopped.startswith("step 2 was the last one")
    assert result == chatbot.TrainingResult(folder / "checkpoints/weibo", 2, result.stopped, 0, None)
    return folder


def python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process in the current folder."""
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        capture_output=True,
        encoding="utf-8",
        env=ENVIRONMENT,
        check=False,
        timeout=300,
    )


def test_importing_it_is_instant_and_imports_no_tensorflow() -> None:
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        done = python("import chatbot, sys; print({'tensorflow', 'numpy', 'jieba'} & sys.modules.keys())")
        seconds.append(time.perf_counter() - began)
        assert done.stdout == "set()\n", done.stderr
    assert min(seconds) < 0.5


FOUND = doctest.DocTestFinder().find(chatbot.api, "chatbot.api", globs={"chatbot": chatbot})


@pytest.mark.parametrize("example", [found for found in FOUND if found.examples], ids=lambda example: example.name)
def test_the_documented_examples(trained: Path, example: doctest.DocTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(example).attempted
    assert runner.summarize().failed == 0


@pytest.mark.slow
def test_an_attempt_is_loaded_from_anywhere_and_replies_as_the_command_does(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = tmp_path / "elsewhere"
    (trained / "checkpoints/weibo").rename(moved)
    try:
        monkeypatch.chdir(tmp_path)
        bot = chatbot.load(moved)
        questions = ["你好", "", "早上好"]
        assert bot.replies(questions) == [bot.reply(question) for question in questions]
        assert bot.replies([]) == []
    finally:
        moved.rename(trained / "checkpoints/weibo")
    monkeypatch.chdir(trained)
    command = "import sys, chatbot.commands; sys.exit(chatbot.commands.chat())"
    words = [sys.executable, "-c", command, "--attempt", "weibo"]
    done = subprocess.run(
        words, input="\n".join(questions).encode(), capture_output=True, env=ENVIRONMENT, check=True, timeout=300
    )
    assert done.stdout.decode().splitlines() == bot.replies(questions)


@pytest.mark.slow
def test_training_in_a_thread_changes_no_handler_and_goes_on(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    results: list[chatbot.TrainingResult] = []

    def work() -> None:
        first = {**SIZES, "attempt": "thread", "data": [Path("pairs.tsv")]}
        results.append(chatbot.train(**first))
        results.append(chatbot.train(**{**first, "steps": 3, "validation": "pairs2.tsv"}))

    Path("pairs2.tsv").write_text("再见\t再见\n", encoding="utf-8")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [result.step for result in results] == [2, 3]
    assert results[1].best_step == 3
    assert results[1].best_nats_per_character is not None


@pytest.mark.slow
def test_a_script_without_a_main_guard_trains_on_all_cores(workplace: Path) -> None:
    lines = [f"问题{i} {'a' * 200}\t回答{i}\n" for i in range(15_000)]  # more than one process reads
    Path("many.tsv").write_text("".join(lines), encoding="utf-8")
    Path("script.py").write_text(
        f"import chatbot\nprint(chatbot.train(data='many.tsv', **{SIZES!r}).step)\n", encoding="utf-8"
    )
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", env=ENVIRONMENT, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Training on ") == 1
    assert done.stdout.splitlines()[-1] == "2"


@pytest.mark.slow
def test_several_processes_train_too(workplace: Path) -> None:
    Path("pairs.tsv").write_text(PAIRS, encoding="utf-8")
    done = python(f"import chatbot; print(chatbot.train(data='pairs.tsv', local_workers=2, **{SIZES!r}))")
    directory = Path("checkpoints/default").absolute()
    result = chatbot.TrainingResult(directory, 2, "all processes have ended", 0, None)
    assert done.stdout.splitlines()[-1] == str(result), done.stderr


def test_devices_that_are_fixed_already_are_named(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    with pytest.raises(chatbot.UserError) as error:
        chatbot.train(data="pairs.tsv", attempt="more", towers=9, batch_size=9, **SIZES)
    line = "--towers 9: TensorFlow already computes in this process, with its CPU as 4; train in a new process"
    assert str(error.value) == line


# What is given to train, and a part of the line. Where encode has the settings too, it must print the same.
MISTAKES: list[tuple[dict[str, Any], str, bool]] = [
    ({"steps": "many"}, "--steps 'many': int expected", False),
    ({"learning_rate": "fast"}, "--learning-rate 'fast': float expected", False),
    ({"stepz": 1}, "unrecognized arguments: --stepz; the nearest is --steps", False),
    ({"min_character": 1}, "unrecognized arguments: --min-character; the nearest is --min-characters", True),
    ({"steps": 1, "epochs": 1}, "give one of the two", False),
    ({"keep_prob": 0.0}, "--keep-prob 0.0: must be above 0", False),
    ({"cell": "rnn"}, "--cell rnn: choose one of lstm, gru", False),
    ({"rnn_size": 7}, "--rnn-size 7: ", False),
    ({"attempt": "../other"}, "without slashes", False),
    ({"config": "none.json"}, "none.json: settings cannot be read", False),
    ({"gpus": "0,1"}, "requested 0, 1; found none", False),
    ({"clean": ["none", "urls"]}, "--clean none urls: none excludes all other values", True),
    ({"clean": ["spelling"]}, "--clean spelling: choose one of", True),
    ({"vocabulary_size": 4}, "--vocabulary-size 4: must be at least 5", True),
    ({"tokenizer": "char", "dictionary": "words.txt"}, "--dictionary: ", True),
    ({"data": []}, "argument --data: expected at least one argument", False),
    ({"data": ["none.tsv"]}, "none.tsv: no such file", True),
    ({"data": ["."]}, "a directory", True),
    ({"data": ["empty.tsv"]}, "the file is empty", True),
    ({"data": ["pairs.tsv"], "cache": "pairs.tsv"}, "pairs.tsv: ", True),
    ({"data": ["pairs.tsv"], "validation": "none.tsv"}, "none.tsv: no such file", True),
    ({"data": ["pairs.tsv"], "max_length": 2}, "--max-length 2: every pair is longer", False),
    ({"data": ["pairs.tsv"], "batch_size": 1, "towers": 2}, "--batch-size 1: less than the 2 towers", False),
]


def words_of(given: dict[str, Any]) -> list[str]:
    """The command line of these keywords."""
    words = []
    for name, value in given.items():
        words += ["--" + name.replace("_", "-"), *map(str, value if isinstance(value, list) else [value])]
    return words


def line_of(program: str, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What a command prints on standard error; it must exit with code 2."""
    command, *first = program.split()
    if first and words[0] == "--data":  # encode takes files without a flag
        words = words[1:]
    monkeypatch.setattr(sys, "argv", [command, *first, *words])
    capsys.readouterr()
    run = commands.train if "train" in command else commands.data
    try:
        code: object = run()
    except SystemExit as left:  # argparse's
        code = left.code
    assert code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("NO GPU")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(("given", "words", "encoded"), MISTAKES, ids=lambda value: None)
def test_each_way_to_call_it_has_the_same_line_for_a_mistake(
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    words: str,
    encoded: bool,
) -> None:
    Path("empty.tsv").touch()
    Path("pairs.tsv").write_text(PAIRS, encoding="utf-8")
    with pytest.raises(chatbot.UserError) as error:
        chatbot.train(**given)
    line = str(error.value)
    assert words in line
    programs = ["train.py", "chatbot-train", *(["-m encode", "chatbot-data encode"] if encoded else [])]
    printed = {line_of(program, words_of(given), capsys, monkeypatch).split(" (see ")[0] for program in programs}
    assert printed == {f"error: {line}".split(" (see ")[0]}
