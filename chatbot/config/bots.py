"""The settings of python -m chatbot.chat.bots telegram | webhook."""

import dataclasses
import urllib.parse

from chatbot.command_line import CommandLine
from chatbot.config.decoding import DecodingSettings
from chatbot.config.serve import address_of
from chatbot.errors import UserError
from chatbot.flags import Flags, setting

RUN, LIMITS, SERVICE = "run", "limits", "service"


@dataclasses.dataclass(frozen=True)
class BotSettings(Flags):
    """The settings of every bot: the model, and limits of conversations."""

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


@dataclasses.dataclass(frozen=True)
class TelegramSettings(Flags):
    """The settings of the Telegram bot."""

    token_file: str = setting(..., "a file with the token that @BotFather gave", group=SERVICE, metavar="FILE")
    api_url: str = setting("https://api.telegram.org", "the Bot API, or a Bot API server of your own", metavar="URL")
    bot: BotSettings = dataclasses.field(default_factory=BotSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_url("--api-url", self.api_url)


@dataclasses.dataclass(frozen=True)
class WebhookSettings(Flags):
    """The settings of the webhook."""

    secret_file: str = setting(
        ..., "a file with the secret that signs requests, of at least 16 characters", group=SERVICE, metavar="FILE"
    )
    seen_file: str = setting(
        "data/.webhook-requests.sqlite", "remembers recent requests, so that none is accepted twice", metavar="FILE"
    )
    listen: str = setting("127.0.0.1:9000", "the address that takes requests", metavar="HOST:PORT")
    callback: str | None = setting(
        None, "post replies to this URL instead of answering the request with them", metavar="URL"
    )
    bot: BotSettings = dataclasses.field(default_factory=BotSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.callback is not None:
            _check_url("--callback", self.callback)
        _ = self.address

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of --listen. Raises UserError for text that has not both."""
        return address_of("--listen", self.listen)


TELEGRAM = CommandLine(
    TelegramSettings,
    "bot telegram",
    "Answer messages on Telegram with a trained chatbot, by long polling.",
    "--attempt weibo --token-file telegram-token",
    "token_file attempt export ratings messages_per_minute",
    without="n_best",
)
WEBHOOK = CommandLine(
    WebhookSettings,
    "bot webhook",
    "Answer signed messages by HTTP with a trained chatbot, for services that have no bot of their own here.",
    "--attempt weibo --secret-file webhook-secret",
    "secret_file listen callback attempt export ratings messages_per_minute",
    without="n_best",
)


def _check_url(flag: str, url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url:
        raise UserError(f"{flag} {url}: expected a URL that begins with https:// or http://")
