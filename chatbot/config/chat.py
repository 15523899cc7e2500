"""The settings of chat.py."""

import dataclasses
from collections.abc import Sequence

from chatbot.command_line import CommandLine
from chatbot.config.decoding import DecodingSettings
from chatbot.config.serve import ServeSettings
from chatbot.errors import UserError
from chatbot.flags import Flags, setting

RUN = "run"


@dataclasses.dataclass(frozen=True)
class ChatSettings(Flags):
    """The settings of chat.py."""

    attempt: str = setting("default", "the training run to talk to: its name, or the path of its folder", group=RUN)
    export: str | None = setting(
        None, "instead of --attempt: a folder with an export to ONNX, which needs no TensorFlow", metavar="FOLDER"
    )
    history: int | None = setting(
        None, "number of turns that are read with a question, at most the attempt's; default: the attempt's", least=0
    )
    follow: bool = setting(False, "take the newer checkpoints of an attempt that is being trained, between replies")
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)
    server: ServeSettings = dataclasses.field(default_factory=ServeSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
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
    "chat.py",
    "Talk to a trained chatbot, in a terminal or through a pipe.",
    "--attempt weibo",
    "attempt export history follow beam_size temperature top_k top_p seed stop retrieve n_best serve",
)
SERVE = CommandLine(
    ChatSettings,
    "chat.py --serve",
    "Serve a trained chatbot, and the other attempts: OpenAI's chat-completions API, and a page for browsers.",
    "--attempt weibo",
    "attempt export beam_size temperature top_p retrieve serve api_key_file cors_origin allowed_host rate_limit",
    without="n_best follow",
)


def serve_settings(arguments: Sequence[str]) -> ChatSettings:
    """Parse the flags of chat.py for the server, by default on the loopback interface. Raises UserError."""
    return SERVE.parse(["--serve", "127.0.0.1:8000", *arguments])
