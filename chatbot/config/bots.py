"""The settings of python -m chatbot.chat.bots telegram."""

import dataclasses
import urllib.parse

from chatbot.command_line import CommandLine
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.flags import Flags, setting

SERVICE = "service"
RUN = "run"
LIMITS = "limits"


@dataclasses.dataclass(frozen=True)
class BotSettings(Flags):
    """The settings of the Telegram bot: the service, the model, and limits of conversations."""

    token_file: str = setting(..., "a file with the token that @BotFather gave", group=SERVICE, metavar="FILE")
    api_url: str = setting("https://api.telegram.org", "the Bot API, or a Bot API server of your own", metavar="URL")
    attempt: str = setting("default", "the training run that answers: its name, or the path of its folder", group=RUN)
    export: str | None = setting(None, "instead of --attempt: a folder with an export to ONNX", metavar="FOLDER")
    ratings: str = setting(
        "data/ratings.jsonl", "/good and /bad append the question and its reply to this file", metavar="FILE"
    )
    conversations: int = setting(
        1000, "conversations in memory; beyond it, the oldest is forgotten", group=LIMITS, least=1, most=1_000_000
    )
    forget_minutes: float = setting(60.0, "a conversation is forgotten after R minutes without a message", above=0)
    messages_per_minute: int = setting(20, "messages of a conversation that are answered in a minute", least=1)
    reply_seconds: float = setting(30.0, "time limit of a reply", above=0, most=3600)
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.export is not None and self.attempt != BotSettings.attempt:
            raise UserError(f"--attempt {self.attempt} and --export {self.export}: give one of the two")
        try:
            parts = urllib.parse.urlsplit(self.api_url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_url = False
        if not is_url:
            raise UserError(f"--api-url {self.api_url}: expected a URL that begins with https:// or http://")


TELEGRAM = CommandLine(
    BotSettings,
    "bot telegram",
    "",
    "--attempt weibo --token-file telegram-token",
    "token_file attempt export ratings messages_per_minute",
    without="n_best",
)
