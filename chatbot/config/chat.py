"""The settings of chat.py: of the chat in a terminal, of the server, and of the bots."""

import contextlib
import dataclasses
import ipaddress
import re
import urllib.parse
from collections.abc import Sequence

from chatbot.command_line import CommandLine
from chatbot.config.decoding import DecodingSettings
from chatbot.config.export import ZIP
from chatbot.errors import UserError
from chatbot.flags import Flags, flag_of, flags_of, setting

RUN = "run"


@dataclasses.dataclass(frozen=True)
class ServeSettings(Flags):
    """The settings of the server of the API and the page. Raises UserError for a flag without --serve."""

    serve: str | None = setting(
        None,
        "serve OpenAI's API and a page at this address",
        unset="none, of `serve` 127.0.0.1:8000",
        group="server",
        metavar="HOST:PORT",
    )
    port: int | None = setting(None, "the port, in place of that of the address", least=1, most=65535)
    also: tuple[str, ...] = setting((), "further attempts that requests and the page may choose", metavar="NAME")
    all_attempts: bool = setting(False, "let them choose among all attempts in checkpoints/, also later ones")
    no_ratings: bool = setting(False, "collect no ratings of replies")
    live_ratings: bool = setting(False, "let ratings change replies where no key is needed, too")
    api_key_file: str | None = setting(
        None, "file of keys, one per line; requests of the API need one of them as bearer", metavar="FILE"
    )
    cors_origin: tuple[str, ...] = setting(
        (), "origins of web pages that may use the API, such as https://example.org", metavar="ORIGIN"
    )
    allowed_host: tuple[str, ...] = setting(
        (), "names for this server beside localhost and addresses", unset="any, on 127.0.0.1 none", metavar="NAME"
    )
    trusted_proxy: tuple[str, ...] = setting(
        (), "addresses or networks of proxies whose X-Forwarded-For names the client", metavar="ADDRESS"
    )
    rate_limit: int = setting(
        0, "replies a minute of one client; beyond it status 429; 0: no limit", least=0, most=10**6
    )
    queue: int = setting(256, "requests that are computed or wait at once; beyond it status 429", least=1, most=10**5)
    request_timeout: float = setting(60.0, "seconds for a request, also while the server stops", above=0, most=3600)
    serve_memory: int | None = setting(
        None, "megabytes for models in memory at once", unset="half of the machine's", least=1, metavar="MB"
    )
    log_access: bool = setting(False, "print each request as one line to standard error, with its X-Request-ID")
    log_conversations: bool = setting(False, "print each question and its replies as one JSON object a line")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.serve is None:
            for field in dataclasses.fields(self):
                if getattr(self, field.name) != field.default:
                    raise UserError(f"{flag_of(field.name)}: for the server; add --serve HOST:PORT")
            return
        _ = self.address
        for origin in self.cors_origin:
            if not re.fullmatch(r"\*|https?://[^\s/]+", origin):
                raise UserError(f"--cors-origin {origin}: give an origin such as https://example.org, or * for all")
        for name in self.allowed_host:
            if not re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?", name):
                raise UserError(f"--allowed-host {name}: give a name without scheme and port, such as chat.example.org")
        for proxy in self.trusted_proxy:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise UserError(f"--trusted-proxy {proxy}: give an address or a network such as 10.0.0.0/8") from None

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port of --serve, or of --port. An IPv6 host is in brackets.

        Raises UserError for text that has not both.
        """
        host, _, port = (self.serve or "").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        with contextlib.suppress(ValueError):
            if ":" in host:
                ipaddress.ip_address(host)
            if host and port.isascii() and port.isdecimal() and int(port) <= 65535:
                return host, int(port) if self.port is None else self.port
        raise UserError(f"--serve {self.serve}: expected HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")


@dataclasses.dataclass(frozen=True)
class AnsweringSettings(Flags):
    """The model that answers. Raises UserError for two of them."""

    attempt: str = setting("default", "the training run that answers: its name, or the path of its folder", group=RUN)
    export: str | None = setting(
        None, "instead of --attempt: an export to ONNX, which needs no TensorFlow: a folder or a .zip", metavar="PATH"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.export is not None and self.attempt != AnsweringSettings.attempt:
            raise UserError(f"--attempt {self.attempt} and --export {self.export}: give one of the two")


@dataclasses.dataclass(frozen=True)
class ChatSettings(AnsweringSettings):
    """The settings of chat.py."""

    json: bool = setting(
        False,
        "print reply, score and looked_up, the question that a reply answered, as JSON; for a question",
        group=RUN,
    )
    words: tuple[str, ...] = setting(
        (), "an export to talk to, if it ends in .zip; or a question, whose reply is printed", metavar="WORD"
    )
    history: int | None = setting(
        None, "number of turns that are read with a question, at most the attempt's", unset="the attempt's", least=0
    )
    follow: bool = setting(False, "take the newer checkpoints of an attempt that is being trained, between replies")
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)
    server: ServeSettings = dataclasses.field(default_factory=ServeSettings)

    def __post_init__(self) -> None:
        exports = [*filter(None, [self.export]), *(word for word in self.words if word.endswith(ZIP))]
        if len({*exports}) > 1:
            raise UserError(f"{' and '.join(exports)}: give one export")
        object.__setattr__(self, "export", exports[0] if exports else None)  # the class is frozen
        super().__post_init__()
        if self.json and not self.question:
            raise UserError("--json: for the reply to a question; give one, or leave --json out")
        if self.server.serve is not None and self.question:
            raise UserError(f"{self.question[:40]!r}: a server is asked by requests; leave the question out")
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


@dataclasses.dataclass(frozen=True)
class BotSettings(AnsweringSettings):
    """The settings of the Telegram bot: the service, the model, and limits of conversations."""

    token_file: str = setting(..., "a file with the token that @BotFather gave", group="service", metavar="FILE")
    api_url: str = setting("https://api.telegram.org", "the Bot API, or a Bot API server of your own", metavar="URL")
    ratings: str = setting(
        "data/ratings.jsonl", "/good and /bad append the question and its reply to this file", group=RUN, metavar="FILE"
    )
    conversations: int = setting(
        1000, "conversations in memory; beyond it, the oldest is forgotten", group="limits", least=1, most=1_000_000
    )
    forget_minutes: float = setting(60.0, "a conversation is forgotten after R minutes without a message", above=0)
    messages_per_minute: int = setting(20, "messages of a conversation that are answered in a minute", least=1)
    reply_seconds: float = setting(30.0, "time limit of a reply", above=0, most=3600)
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            parts = urllib.parse.urlsplit(self.api_url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_url = False
        if not is_url:
            raise UserError(f"--api-url {self.api_url}: expected a URL that begins with https:// or http://")


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
TELEGRAM = CommandLine(
    BotSettings,
    "bot telegram",
    "",
    "--attempt weibo --token-file telegram-token",
    "token_file attempt export ratings messages_per_minute",
    without="n_best",
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
