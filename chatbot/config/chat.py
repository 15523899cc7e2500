"""The settings of chat.py."""

import dataclasses
from collections.abc import Sequence

from chatbot.command_line import CommandLine
from chatbot.config.decoding import DecodingSettings
from chatbot.config.export import ZIP
from chatbot.config.serve import ServeSettings
from chatbot.errors import UserError
from chatbot.flags import Flags, flags_of, setting

RUN = "run"


@dataclasses.dataclass(frozen=True)
class ChatSettings(Flags):
    """The settings of chat.py."""

    attempt: str = setting("default", "the training run to talk to: its name, or the path of its folder", group=RUN)
    export: str | None = setting(
        None, "instead of --attempt: an export to ONNX, which needs no TensorFlow: a folder or a .zip", metavar="PATH"
    )
    json: bool = setting(
        False,
        "print reply, score and looked_up, the question that a reply answered, as JSON; for a question",
    )
    words: tuple[str, ...] = setting(
        (), "an export to talk to, if it ends in .zip; or a question, whose reply is printed", metavar="WORD"
    )
    history: int | None = setting(
        None,
        "number of turns that are read with a question, at most the attempt's",
        default_text="the attempt's",
        least=0,
    )
    follow: bool = setting(False, "take the newer checkpoints of an attempt that is being trained, between replies")
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)
    server: ServeSettings = dataclasses.field(default_factory=ServeSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        exports = [*filter(None, [self.export]), *(word for word in self.words if word.endswith(ZIP))]
        if len({*exports}) > 1:
            raise UserError(f"{' and '.join(exports)}: give one export")
        object.__setattr__(self, "export", exports[0] if exports else None)  # the class is frozen
        if self.json and not self.question:
            raise UserError("--json: for the reply to a question; give one, or leave --json out")
        if self.server.serve is not None and self.question:
            raise UserError(f"{self.question[:40]!r}: a server is asked by requests; leave the question out")
        if self.export is not None and self.attempt != ChatSettings.attempt:
            raise UserError(f"--attempt {self.attempt} and --export {self.export}: give one of the two")
        if self.server.serve is not None and self.decoding.n_best > 1:
            raise UserError(
                "--n-best and --serve: a request asks for several replies by its field n; leave --n-best out"
            )
        if self.server.serve is not None and self.follow:
            raise UserError("--follow and --serve: a server takes newer checkpoints by itself; leave --follow out")
        if self.export is not None and self.follow:
            raise UserError(f"--follow and --export {self.export}: an export has no newer checkpoints; give --attempt")

    @property
    def question(self) -> str:
        """The question on the command line; "" without one."""
        return " ".join(word for word in self.words if not word.endswith(ZIP))

    def turns_of(self, trained: int) -> int:
        """Return the number of turns to remember. trained: the attempt's --history, or fewer, else UserError."""
        if self.history is not None and self.history > trained:
            which = f"--attempt {self.attempt}" if self.export is None else f"the attempt of --export {self.export}"
            if not trained:
                raise UserError(f"--history {self.history}: {which} reads one question at a time; leave --history out")
            raise UserError(
                f"--history {self.history}: {which} was trained with --history {trained}; give at most as many"
            )
        return trained if self.history is None else self.history


CHAT = CommandLine(
    ChatSettings,
    "chat",
    "",
    "--attempt weibo",
    "words attempt export history follow beam_size temperature top_k top_p seed stop retrieve n_best serve",
    positional="words",
)
ASK = CommandLine(
    ChatSettings,
    "ask",
    "",
    "--attempt weibo 你好",
    "words attempt export json beam_size temperature top_k top_p seed stop retrieve",
    positional="words",
    without=f"history follow n_best {' '.join(flags_of(ServeSettings))}",
)
SERVE = CommandLine(
    ChatSettings,
    "serve",
    "",
    "--attempt weibo",
    "words attempt export also beam_size temperature top_p retrieve port serve api_key_file cors_origin allowed_host",
    positional="words",
    without="n_best follow json",
)


def ask_settings(arguments: Sequence[str] | None = None) -> ChatSettings:
    """Parse the flags of a question. Raises UserError without one."""
    settings = ASK.parse(arguments)
    if not settings.question.strip():
        raise UserError(f"no question; give one, such as `{ASK.prog} 你好`")
    return settings


def serve_settings(arguments: Sequence[str]) -> ChatSettings:
    """Parse the flags of chat.py for the server, by default on the loopback interface. Raises UserError."""
    return SERVE.parse(["--serve", "127.0.0.1:8000", *arguments])
