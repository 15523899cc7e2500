"""The settings of python -m chatbot.chat.bots telegram | webhook."""

import dataclasses
import urllib.parse
from collections.abc import Sequence

from chatbot.config.addresses import address_of
from chatbot.config.decoding import DecodingSettings
from chatbot.errors import UserError
from chatbot.flags import check_fields, compose, parse_flags, setting

RUN, LIMITS, SERVICE = "run", "limits", "service"
MODULE = "-m chatbot.chat.bots"


@dataclasses.dataclass(frozen=True)
class BotSettings:
    """The settings of every bot: the model, and limits of conversations."""

    attempt: str = setting("default", RUN, "the training run that answers: its name, or the path of its folder")
    export: str | None = setting(
        None,
        RUN,
        "instead of --attempt: a folder that python -m chatbot.export has written with --format onnx",
        metavar="FOLDER",
    )
    ratings: str = setting(
        "data/ratings.jsonl", RUN, "/good and /bad append the question and its reply to this file", metavar="FILE"
    )
    conversations: int = setting(
        1000,
        LIMITS,
        "number of conversations in memory; beyond it, the least recently used one is forgotten",
        least=1,
        kind=int,
        most=1_000_000,
    )
    forget_minutes: float = setting(
        60.0, LIMITS, "a conversation is forgotten after R minutes without a message", kind=float, above=0
    )
    messages_per_minute: int = setting(20, LIMITS, "of each conversation", kind=int, least=1)
    reply_seconds: float = setting(30.0, LIMITS, "time limit of a reply", kind=float, above=0, most=3600)
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.export is not None and self.attempt != BotSettings.attempt:
            raise UserError(f"--attempt {self.attempt} and --export {self.export}: give one of the two")


@dataclasses.dataclass(frozen=True)
class TelegramSettings:
    """The settings of the Telegram bot."""

    token_file: str = setting(..., SERVICE, "a file with the token that @BotFather gave", metavar="FILE")
    api_url: str = setting(
        "https://api.telegram.org", SERVICE, "the Bot API, or a Bot API server of your own", metavar="URL"
    )
    bot: BotSettings = dataclasses.field(default_factory=BotSettings)

    def __post_init__(self) -> None:
        check_fields(self)
        _check_url("--api-url", self.api_url)


@dataclasses.dataclass(frozen=True)
class WebhookSettings:
    """The settings of the webhook."""

    secret_file: str = setting(
        ..., SERVICE, "a file with the secret that signs requests, of at least 16 characters", metavar="FILE"
    )
    seen_file: str = setting(
        "data/.webhook-requests.sqlite",
        SERVICE,
        "remembers the requests of the last ten minutes, so that none is accepted twice, also after a restart",
        metavar="FILE",
    )
    listen: str = setting("127.0.0.1:9000", SERVICE, "the address that takes requests", metavar="HOST:PORT")
    callback: str | None = setting(
        None, SERVICE, "post replies to this URL instead of answering the request with them", metavar="URL"
    )
    bot: BotSettings = dataclasses.field(default_factory=BotSettings)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.callback is not None:
            _check_url("--callback", self.callback)
        _ = self.address

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of --listen. Raises UserError for text that has not both."""
        return address_of("--listen", self.listen)


def telegram_settings(arguments: Sequence[str] | None = None) -> TelegramSettings:
    """Parse the command line of the Telegram bot. Raises UserError for a value that is not allowed."""
    about = "Answer messages on Telegram with a trained chatbot, by long polling."
    return compose(TelegramSettings, **parse_flags(TelegramSettings, f"{MODULE} telegram", about, arguments))


def webhook_settings(arguments: Sequence[str] | None = None) -> WebhookSettings:
    """Parse the command line of the webhook. Raises UserError for a value that is not allowed."""
    about = "Answer signed messages by HTTP with a trained chatbot, for services that have no bot of their own here."
    return compose(WebhookSettings, **parse_flags(WebhookSettings, f"{MODULE} webhook", about, arguments))


def _check_url(flag: str, url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url:
        raise UserError(f"{flag} {url}: expected a URL that begins with https:// or http://")
