"""The Python API of the package `chatbot`. TensorFlow is imported only when `train` or `load` needs it.

import chatbot

result = chatbot.train(data="pairs.tsv", attempt="weibo", rnn_size=512)
bot = chatbot.load(result.directory)
bot.reply("你好")
"""

import os
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chatbot.attempts.checkpoint import read_pointer
from chatbot.attempts.files import LAST
from chatbot.attempts.settings import settings_over_config
from chatbot.chat.loading import LoadedModel, load_model
from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.errors import EXIT_INTERRUPTED, UserError, as_user_errors
from chatbot.flags import compose, flag_of, flags_of, nearest, settings_by_name
from chatbot.inference.request import Piece, Question
from chatbot.training.result import INTERRUPTED, TrainingResult

# Names of the keyword arguments of `train` and `load`.
NAMES = {*flags_of(Settings), *flags_of(DecodingSettings)}


class Bot:
    """A trained chatbot, as returned by `load`.

    Attributes:
        directory: Folder of the training run or the exported model.
        step: Training step of the loaded checkpoint.
    """

    def __init__(self, directory: Path, model: LoadedModel) -> None:
        self.directory = directory
        self.step = model.card.step
        self._engine = model.engine
        self._n_best = model.responder.decoding.n_best
        weakref.finalize(
            self, model.engine.stop
        )  # Python can call this finalizer in any thread, so it must not join threads

    def reply(self, question: str, history: Sequence[str] = ()) -> str:
        """Return the best reply as one line of text.

        `history` contains the previous utterances of the conversation, oldest first, alternating between user and
        chatbot. A chatbot trained with --history N reads the last N utterances. If the question has no visible
        characters, the reply asks for text.

        >>> bot = chatbot.load("checkpoints/weibo")
        >>> reply = bot.reply("你呢", history=["你好吗", "我很好"])
        """
        return "".join(self.stream(question, history))

    def replies(self, questions: Iterable[str]) -> list[str]:
        """Return the reply to each question. This is faster than repeated calls to `reply`, because it uses batches.

        >>> bot = chatbot.load("checkpoints/weibo")
        >>> questions = ["你好", "早上好"]
        >>> bot.replies(questions) == [bot.reply(question) for question in questions]
        True
        """
        if isinstance(questions, str):
            raise UserError(f"replies({questions!r}): give a list of questions, or call reply for a single one")
        streams = [self._pieces(question, streams=False) for question in [*map(_check_question, questions)]]
        return ["".join(piece.text for piece in pieces) for pieces in streams]

    def stream(self, question: str, history: Sequence[str] = ()) -> Iterator[str]:
        """Yield parts of the reply as they are generated. The joined parts equal `reply(question, history)`.

        With beam search, several candidates or reranking, the whole reply is a single part.

        >>> bot = chatbot.load("checkpoints/weibo", beam_size=1)
        >>> "".join(bot.stream("你好")) == bot.reply("你好")
        True
        """
        return (piece.text for piece in self._pieces(question, history) if piece.text)

    def n_best(self, question: str, history: Sequence[str] = ()) -> list[tuple[str, float]]:
        """Return the best replies with their scores, best first. The argument `n_best` of `load` limits their number.

        >>> bot = chatbot.load("checkpoints/weibo", beam_size=5, n_best=3)
        >>> replies = bot.n_best("你好")
        """
        return [(piece.text, piece.score or 0.0) for piece in self._pieces(question, history, n_best=self._n_best)]

    def _pieces(self, question: str, history: Sequence[str] = (), **fields: Any) -> Iterator[Piece]:
        turns = _check_turns(history)
        last_reply = turns[-1] if turns else ""
        return self._engine.pieces(Question(_check_question(question), turns, last_reply, **fields))


def _check_question(text: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"question {text!r}: give text")
    return text


def _check_turns(history: Sequence[str]) -> tuple[str, ...]:
    if isinstance(history, str):
        raise UserError(f"history={history!r}: give a list of turns, such as [{history!r}]")
    return tuple(map(_check_question, history))


def load(directory: str | os.PathLike[str], **decoding: Any) -> Bot:
    """Load the best checkpoint of an attempt (a named training run), or an ONNX export, which needs no TensorFlow.

    Args:
        directory: Folder of the attempt or the export.
        decoding: Settings of decoding, such as beam_size=1 or ban=["foo"]. `python chat.py --help` lists them as flags;
            in Python, their names have underscores.

    Raises:
        UserError: If a file is missing or damaged, or a setting is not allowed.

    >>> chatbot.load("checkpoints/weibo", beam_size=1).step
    2
    >>> chatbot.load("nowhere")
    Traceback (most recent call last):
    chatbot.errors.UserError: ...nowhere: no such directory; give the directory of an attempt
    """
    with settings_by_name(NAMES), as_user_errors():
        settings = compose(DecodingSettings, **_setting_values(DecodingSettings, decoding))
        return Bot(Path(directory), load_model(Path(directory), settings, ratings=None, most_waiting=sys.maxsize))


def train(**settings: Any) -> TrainingResult:
    """Start or resume a training run, like the command `python train.py`.

    Checkpoints are written to checkpoints/ and curves to tensorboard/ in the current folder. In the main thread, Ctrl-C
    saves a checkpoint and ends the run after the current step. Within a process, the values of towers= and gpus= cannot
    change, because TensorFlow fixes its devices at its first computation.

    Args:
        settings: Settings of training, such as data="pairs.tsv", rnn_size=512 or bidirectional=False. `python train.py
            --help` lists them as flags; in Python, their names have underscores.

    Raises:
        UserError: If settings, files or devices cannot be used.

    >>> result = chatbot.train(data="pairs.tsv", attempt="weibo", steps=2, rnn_size=8, embedding_size=8)
    Training on 2 pairs from pairs.tsv; ...
    >>> result.directory.name, result.step, result.interrupted
    ('weibo', 2, False)
    >>> chatbot.train(data="pairs.tsv", rnnsize=8)
    Traceback (most recent call last):
    chatbot.errors.UserError: rnnsize: no such argument; the nearest is rnn_size
    """
    with settings_by_name(NAMES), as_user_errors(), _hide_main_script():
        run_settings = settings_over_config(_setting_values(Settings, settings))
        from chatbot.training.start import check_cluster, starts_processes, train_here  # needs the extra "train"

        if run_settings.parallel.selftest or starts_processes(run_settings.parallel):
            return _train_with_others(run_settings)
        return train_here(run_settings, check_cluster(run_settings))


def _train_with_others(settings: Settings) -> TrainingResult:
    """Train with several processes, or run the self-test.

    The result is read from the folder of the training run. It exists only on the machine that runs validation.
    """
    from chatbot.training.start import start

    code = start(settings)
    directory = settings.run.directory.absolute()
    if code not in (0, EXIT_INTERRUPTED):
        raise UserError(f"{directory}: training failed with exit code {code}; see the lines above for the reason")
    if settings.parallel.selftest:
        return TrainingResult(directory, 0, "the self-test has passed", 0, None)
    stopped = INTERRUPTED if code == EXIT_INTERRUPTED else "all processes have ended"
    if not (directory / LAST).exists():
        return TrainingResult(directory, 0, stopped, 0, None)
    last = read_pointer(directory / LAST)
    return TrainingResult(directory, last["step"], stopped, last["best_step"], last["best_nats"])


def _setting_values(kind: type, keywords: dict[str, Any]) -> dict[str, Any]:
    """Convert keyword arguments to setting values. Paths become strings, and lists become tuples."""
    flags = flags_of(kind)
    for name in (name for name in keywords if name not in flags):
        suggestion = nearest(name, flags)
        raise UserError(f"{name}: no such argument{f'; the nearest is {suggestion}' if suggestion else ''}")
    values = {}
    for name, value in keywords.items():
        if not flags[name].many:
            values[name] = _text(value)
            continue
        if value is None:
            continue
        items = value if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
        values[name] = tuple(map(_text, items))
        if not values[name]:
            raise UserError(f"argument {flag_of(name)}: expected at least one argument")
    return values


def _text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


@contextmanager
def _hide_main_script() -> Iterator[None]:
    """Prevent worker processes from importing the caller's script.

    multiprocessing imports the main module again in each process that it spawns. If a script calls `train` without `if
    __name__ == "__main__":`, each worker process would start another training run.
    """
    main = sys.modules["__main__"]
    spec = main.__spec__
    file = getattr(main, "__file__", None)
    main.__spec__ = None
    if file is not None:
        del main.__file__
    try:
        yield
    finally:
        main.__spec__ = spec
        if file is not None:
            main.__file__ = file
