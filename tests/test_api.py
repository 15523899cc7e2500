"""The Python API: its docstring examples, training, loading, and the errors it shares with the commands."""

import doctest
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import chatbot
import chatbot.api
from chatbot.errors import EXIT_INTERRUPTED
from chatbot.inference.replier import Source
from chatbot.inference.text_responder import TextResponder
from tests.commands import python, run
from tests.in_process import call

SIZES: dict[str, Any] = {"rnn_size": 8, "embedding_size": 8, "steps": 2}
PAIRS = "你好\t你好呀\n早上好\t早\n"


@pytest.fixture(scope="module", autouse=True)
def _devices() -> None:
    """Create the logical devices of conftest.py first: training in this process would create its own."""
    tf.config.list_logical_devices()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with pairs.tsv and the attempt checkpoints/weibo of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "pairs.tsv").write_text(PAIRS, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = chatbot.train(data="pairs.tsv", attempt="weibo", **SIZES)
    assert result.stopped.startswith("step 2 was the last one")
    assert result == chatbot.TrainingResult(folder / "checkpoints/weibo", 2, result.stopped, 0, None)
    return folder


def test_import_takes_few_modules() -> None:
    completed = python("import sys; before = {*sys.modules}; import chatbot; print(len(sys.modules.keys() - before))")
    assert int(completed.stdout) < 60, completed.stderr


EXAMPLES = doctest.DocTestFinder().find(chatbot.api, "chatbot.api", globs={"chatbot": chatbot})


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e.examples], ids=lambda example: example.name)
def test_docstring_examples_run(trained: Path, example: doctest.DocTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(example).attempted
    assert runner.summarize().failed == 0


def test_load_refuses_decoding_settings(trained: Path) -> None:
    """Most of them are in test_refusals.py."""
    refused: dict[str, dict[str, Any]] = {
        "top_pp: no such argument; the nearest is top_p": {"top_pp": 0.9},
        "argument ban: expected at least one argument": {"ban": []},
        "rerank: this attempt did not learn to generate questions from answers; train another": {"rerank": 1.0},
    }
    for message, decoding in refused.items():
        with pytest.raises(chatbot.UserError, match=f"^{message}"):
            chatbot.load(trained / "checkpoints/weibo", **decoding)


def test_loaded_attempt_takes_decoding_settings(trained: Path) -> None:
    bot = chatbot.load(trained / "checkpoints/weibo", candidates=4, n_best=4, ban="你", stop=["好"], seed=3)
    (best, _), *_ = bot.n_best("你好")
    assert "".join(bot.stream("你好")) == bot.reply("你好") == best
    assert not {"你", "好"} & set(best)


def test_turns_and_questions_are_lists_and_every_reply_takes_turns(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bot = chatbot.load(trained / "checkpoints/weibo", beam_size=2)
    for function in (bot.reply, bot.stream, bot.n_best, lambda question: bot.replies([question])):
        with pytest.raises(chatbot.UserError, match="question 5: give text"):
            function(5)  # type: ignore[arg-type]
    with pytest.raises(chatbot.UserError, match="question 7: give text"):
        bot.reply("你好", [7])  # type: ignore[list-item]
    for function in (bot.reply, bot.stream, bot.n_best):
        with pytest.raises(chatbot.UserError, match="give a list of turns"):
            function("你好", history="早")
    with pytest.raises(chatbot.UserError, match="give a list of questions"):
        bot.replies("你好")
    read: list[list[str]] = []

    def source(self: TextResponder, text: str, history: tuple[str, ...]) -> Source:
        read.append([*history, text])
        return Source([], [])

    monkeypatch.setattr(TextResponder, "source", source)
    _ = bot.reply("丙", ["甲", "乙"]), [*bot.stream("丙", ["甲", "乙"])], bot.n_best("丙", ["甲", "乙"])
    assert read == [["甲", "乙", "丙"]] * 3


def test_loaded_attempt_replies_like_the_commands(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With flags of decoding, wherever its folder is."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained / "checkpoints/weibo", "moved")
    bot = chatbot.load("moved", candidates=4, seed=3, length_penalty=2.0)
    questions = ["你好", "", "早上好"]
    assert bot.replies(questions) == [bot.reply(question) for question in questions]
    assert bot.replies([]) == []
    flags = "--candidates 4 --seed 3 --length-penalty 2 --json"
    asked = json.loads(call(f"duida ask 早上好 --attempt moved {flags}").out)
    assert [(asked["reply"], pytest.approx(asked["score"]))] == bot.n_best("早上好")[:1]


@pytest.mark.slow
def test_training_runs_and_resumes_in_a_thread(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    results: list[chatbot.TrainingResult] = []

    def train_and_resume() -> None:
        settings = {**SIZES, "attempt": "thread", "data": [Path("pairs.tsv")]}
        results.append(chatbot.train(**settings))
        results.append(chatbot.train(**{**settings, "steps": 3, "validation": "pairs2.tsv"}))

    Path("pairs2.tsv").write_text("".join(f"再见{i}\t再见了{i}\n" for i in range(50)), encoding="utf-8")
    thread = threading.Thread(target=train_and_resume)
    thread.start()
    thread.join()
    assert [result.step for result in results] == [2, 3]
    assert results[1].best_step == 3
    assert results[1].best_nats_per_character is not None


@pytest.mark.slow
def test_script_without_main_guard_trains_in_several_processes(work_dir: Path) -> None:
    """With processes that read and processes that train."""
    lines = [f"问题{i} {'a' * 200}\t回答{i}\n" for i in range(15_000)]  # enough for several reading processes
    Path("many.tsv").write_text("".join(lines), encoding="utf-8")
    train = f"chatbot.train(data='many.tsv', validation='none', local_workers=2, embeddings='none', **{SIZES!r})"
    Path("script.py").write_text(f"import chatbot\nprint({train})\n", encoding="utf-8")
    completed = run(str(Path("script.py").absolute()))
    output = completed.stdout.decode()
    assert completed.returncode == 0, completed.stderr.decode()
    assert output.count("Training on ") == 1
    directory = Path("checkpoints/default").absolute()
    result = chatbot.TrainingResult(directory, 2, "all processes have ended", 0, None)
    assert output.splitlines()[-1] == str(result), completed.stderr.decode()


def test_result_without_the_files_of_the_machine_that_validates(
    work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatbot.training.start.start", lambda _: EXIT_INTERRUPTED)
    result = chatbot.train(data="pairs.tsv", restarts=1)
    assert (result.step, result.interrupted, result.best_step) == (0, True, 0)


def test_initialised_devices_are_reported(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained)
    with pytest.raises(chatbot.UserError) as error:
        chatbot.train(data="pairs.tsv", attempt="more", towers=9, batch_size=9, **SIZES)
    message = "towers 9: TensorFlow already uses fewer devices in this process; train in a new process"
    assert str(error.value) == message
