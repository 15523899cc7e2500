"""The Python API, exported by `import chatbot`. The first call of `train` or `load` imports TensorFlow.

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
from typing import TYPE_CHECKING, Any

from chatbot.attempts.files import LAST
from chatbot.attempts.settings import settings_over_config
from chatbot.config.decoding import DecodingSettings
from chatbot.config.training import Settings
from chatbot.errors import UserError, as_user_errors
from chatbot.flags import compose, flag_of, flags_of, nearest, settings_by_name
from chatbot.training.result import INTERRUPTED, TrainingResult

if TYPE_CHECKING:
    from chatbot.chat.loading import LoadedModel
    from chatbot.inference.request import Piece

# Of the keywords of `train` and `load`.
NAMES = {*flags_of(Settings), *flags_of(DecodingSettings)}


class Bot:
    """A trained chatbot, made by `load`.

    directory: of the attempt or the export. step: the step of the loaded checkpoint.
    """

    def __init__(self, directory: Path, model: "LoadedModel") -> None:
        self.directory = directory
        self.step = model.card.step
        self._engine = model.engine
        self._n_best = model.responder.decoding.n_best
        weakref.finalize(self, model.engine.stop)  # it joins no thread, since this may be one of them

    def reply(self, question: str, history: Sequence[str] = ()) -> str:
        """Return the best reply, one line of text. The reply to a question without visible characters asks for text.

        history: the turns before the question, the oldest first, alternately of the user and of the chatbot. An attempt
        that was trained with --history N reads the last N of them. A reply that is looked up does not repeat the last
        turn, whatever is read.

        >>> bot = chatbot.load("checkpoints/weibo")
        >>> reply = bot.reply("你呢", history=["你好吗", "我很好"])
        """
        return "".join(self.stream(question, history))

    def replies(self, questions: Iterable[str]) -> list[str]:
        """Return the reply to each question. Questions are batched, which is faster than one `reply` per question.

        >>> bot = chatbot.load("checkpoints/weibo")
        >>> questions = ["你好", "早上好"]
        >>> bot.replies(questions) == [bot.reply(question) for question in questions]
        True
        """
        if isinstance(questions, str):
            raise UserError(f"replies({questions!r}): give a list of questions, or call reply for a single one")
        asked = [self._pieces(question, streams=False) for question in [*map(_question, questions)]]
        return ["".join(piece.text for piece in pieces) for pieces in asked]

    def stream(self, question: str, history: Sequence[str] = ()) -> Iterator[str]:
        """Yield the reply in pieces, as its tokens are found; joined, they are `reply(question, history)`.

        Beam search, several candidates and reranking yield the whole reply at once.

        >>> bot = chatbot.load("checkpoints/weibo", beam_size=1)
        >>> "".join(bot.stream("你好")) == bot.reply("你好")
        True
        """
        return (piece.text for piece in self._pieces(question, history) if piece.text)

    def n_best(self, question: str, history: Sequence[str] = ()) -> list[tuple[str, float]]:
        """Return the best replies with their scores, the best first; at most as many as n_best of `load`.

        history: as for `reply`.

        >>> bot = chatbot.load("checkpoints/weibo", beam_size=5, n_best=3)
        >>> replies = bot.n_best("你好")
        """
        return [(piece.text, piece.score or 0.0) for piece in self._pieces(question, history, n_best=self._n_best)]

    def _pieces(self, question: str, history: Sequence[str] = (), **fields: Any) -> "Iterator[Piece]":
        from chatbot.inference.request import Question

        turns = _turns(history)
        last_reply = turns[-1] if turns else ""
        return self._engine.pieces(Question(_question(question), turns, last_reply, **fields))


def _question(text: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"question {text!r}: give text")
    return text


def _turns(history: Sequence[str]) -> tuple[str, ...]:
    if isinstance(history, str):
        raise UserError(f"history={history!r}: give a list of turns, such as [{history!r}]")
    return tuple(map(_question, history))


def load(directory: str | os.PathLike[str], **decoding: Any) -> Bot:
    """Load the best checkpoint in the directory of an attempt, or an export for ONNX Runtime.

    The directory may be anywhere. An export needs no TensorFlow.

    decoding: the decoding flags of `python chat.py --help` with underscores: beam_size=1, temperature=0.8, ban="foo" or
    a list of words. Raises UserError for a missing or damaged directory or file, and for settings that cannot be used.

    >>> chatbot.load("checkpoints/weibo", beam_size=1).step
    2
    >>> chatbot.load("nowhere")
    Traceback (most recent call last):
    chatbot.errors.UserError: ...nowhere: no such directory; give the directory of an attempt
    """
    with settings_by_name(NAMES), as_user_errors():
        settings = compose(DecodingSettings, **_values(DecodingSettings, decoding))
        from chatbot.chat.loading import load_model

        return Bot(Path(directory), load_model(Path(directory), settings, ratings=None, most_waiting=sys.maxsize))


def train(**settings: Any) -> TrainingResult:
    """Train an attempt, or resume it, as `python train.py` does with the same settings as flags.

    The keywords are the flags of `python train.py --help` with underscores: data="pairs.tsv" or a list of files,
    rnn_size=512, steps=1000, bidirectional=False. Checkpoints are written to checkpoints/ and curves to tensorboard/ in
    the current folder. Ctrl-C in the main thread ends the run after the current step and saves; elsewhere no signal
    handler is changed. TensorFlow fixes its devices at its first computation, so towers= and gpus= cannot change later
    in the same process. Of several machines, only the one that validates knows the best step of this run.

    Raises UserError for settings, files or devices that cannot be used. Its text is the line that the command prints,
    with the names of keywords in place of flags.

    >>> result = chatbot.train(data="pairs.tsv", attempt="weibo", steps=2, rnn_size=8, embedding_size=8)
    Training on 2 pairs of pairs.tsv; ...
    >>> result.directory.name, result.step, result.interrupted
    ('weibo', 2, False)
    >>> chatbot.train(data="pairs.tsv", rnnsize=8)
    Traceback (most recent call last):
    chatbot.errors.UserError: rnnsize: no such argument; the nearest is rnn_size
    """
    with settings_by_name(NAMES), as_user_errors(), _script_not_imported():
        chosen = settings_over_config(_values(Settings, settings))
        from chatbot.training.start import checked_cluster, starts_processes, train_here

        if chosen.parallel.selftest or starts_processes(chosen.parallel):
            return _train_with_others(chosen)
        return train_here(chosen, checked_cluster(chosen))


def _train_with_others(settings: Settings) -> TrainingResult:
    """Train in other processes, serve an asynchronous run, or run the self-test.

    The result is read from the attempt's directory, which only the machine that validates may have.
    """
    from chatbot.errors import EXIT_INTERRUPTED
    from chatbot.training.start import start

    code = start(settings)
    directory = settings.run.directory.absolute()
    if code not in (0, EXIT_INTERRUPTED):
        raise UserError(f"{directory}: training failed with exit code {code}; the lines above say why")
    if settings.parallel.selftest:
        return TrainingResult(directory, 0, "the self-test has passed", 0, None)
    from chatbot.attempts.checkpoint import read_pointer

    stopped = INTERRUPTED if code == EXIT_INTERRUPTED else "all processes have ended"
    if not (directory / LAST).exists():
        return TrainingResult(directory, 0, stopped, 0, None)
    last = read_pointer(directory / LAST)
    return TrainingResult(directory, last["step"], stopped, last["best_step"], last["best_nats"])


def _values(kind: type, keywords: dict[str, Any]) -> dict[str, Any]:
    """Convert keywords to flat values of settings: a path to text, and the value of a `many` flag to a tuple."""
    flags = flags_of(kind)
    for name in (name for name in keywords if name not in flags):
        near = nearest(name, flags)
        raise UserError(f"{name}: no such argument{f'; the nearest is {near}' if near else ''}")
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
def _script_not_imported() -> Iterator[None]:
    """Prevent worker processes from importing the caller's script.

    multiprocessing imports the main module again in each process that it spawns. In a script that calls `train` without
    `if __name__ == "__main__":` each worker would start training itself.
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
