"""Settings of the chat in a terminal, the server and the bots."""

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


@dataclasses.dataclass(frozen=True)
class ServeSettings(Flags):
    """Settings of the server. Raises UserError if one of them is set, but --serve is not."""

    serve: str | None = setting(
        None,
        "serve an OpenAI-compatible API and a web page at this address",
        unset="off; 127.0.0.1:8000 with `duida serve`",
        group="server",
        metavar="HOST:PORT",
    )
    port: int | None = setting(
        None, "port on which the server listens", metavar="PORT", unset="the port in --serve", minimum=1, maximum=65535
    )
    also: tuple[str, ...] = setting((), "names of additional attempts that clients can select", metavar="NAME")
    all_attempts: bool = setting(
        False, "let clients select any attempt in checkpoints/, including attempts created later"
    )
    no_ratings: bool = setting(False, "do not collect user ratings of replies")
    live_ratings: bool = setting(False, "let user ratings influence replies even if no API key is required")
    api_key_file: str | None = setting(
        None, "file of API keys, one per line; API requests must send a key as their bearer token", metavar="FILE"
    )
    cors_origin: tuple[str, ...] = setting(
        (), "origins of web pages that may call the API (CORS), such as https://example.org", metavar="ORIGIN"
    )
    allowed_host: tuple[str, ...] = setting(
        (),
        "host names accepted in the Host header, besides localhost and IP addresses",
        unset="any; none on 127.0.0.1",
        metavar="HOST",
    )
    trusted_proxy: tuple[str, ...] = setting(
        (), "addresses or networks of proxies whose X-Forwarded-For header is trusted", metavar="ADDRESS"
    )
    rate_limit: int = setting(
        0,
        "maximum number of replies per client per minute; further requests get status 429; 0 means no limit",
        minimum=0,
        maximum=10**6,
    )
    queue: int = setting(
        256,
        "maximum number of running and queued requests; further requests get status 429",
        minimum=1,
        maximum=10**5,
    )
    request_timeout: float = setting(
        60.0,
        "timeout of each request in seconds; a shutdown waits this long for running requests",
        above=0,
        maximum=3600,
    )
    serve_memory: int | None = setting(
        None,
        "memory limit for all loaded models, in megabytes",
        unset="half of the machine's memory",
        minimum=1,
        metavar="MB",
    )
    log_access: bool = setting(False, "log each request with its X-Request-ID to standard error")
    log_conversations: bool = setting(False, "print each question and its replies as a JSON object on its own line")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.serve is None:
            for field in dataclasses.fields(self):
                if getattr(self, field.name) != field.default:
                    raise UserError(f"{flag_of(field.name)}: only for the server; add --serve HOST:PORT")
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
        """Host and port of the server. Raises UserError if --serve is not of the form HOST:PORT."""
        host, _, port = (self.serve or "").rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        with contextlib.suppress(ValueError):
            if ":" in host:
                ipaddress.ip_address(host)
            if host and port.isascii() and port.isdecimal() and int(port) <= 65535:
                return host, int(port) if self.port is None else self.port
        raise UserError(
            f"--serve {self.serve}: expected HOST:PORT, a port of at most 65535, such as 127.0.0.1:8000 or [::1]:8000"
        )


@dataclasses.dataclass(frozen=True)
class AnsweringSettings(Flags):
    """The model to chat with: an attempt (a named training run) or an exported model."""

    attempt: str = setting("default", "attempt to chat with: its name or folder", group="run")
    export: str | None = setting(
        None, "ONNX export (a folder or .zip file) to use instead of an attempt, without TensorFlow", metavar="PATH"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.export is not None and self.attempt != AnsweringSettings.attempt:
            raise UserError(f"--attempt {self.attempt} and --export {self.export} are mutually exclusive; use only one")


@dataclasses.dataclass(frozen=True)
class ChatSettings(AnsweringSettings):
    """Settings of `duida chat`, `ask` and `serve`."""

    json: bool = setting(
        False,
        "print the reply as a JSON object with the fields reply, score and looked_up (the matching training question)",
        group="run",
    )
    words: tuple[str, ...] = setting((), "question to answer, or the .zip file of an export to use", metavar="WORD")
    history: int | None = setting(
        None,
        "number of previous turns that the model reads with each question",
        unset="the attempt's --history, which is also the maximum",
        minimum=0,
    )
    follow: bool = setting(False, "load newer checkpoints between replies while the attempt is still training")
    decoding: DecodingSettings = dataclasses.field(default_factory=DecodingSettings)
    server: ServeSettings = dataclasses.field(default_factory=ServeSettings)

    def __post_init__(self) -> None:
        exports = [*filter(None, [self.export]), *(word for word in self.words if word.endswith(ZIP))]
        if len({*exports}) > 1:
            raise UserError(f"{' and '.join(exports)}: give one export")
        object.__setattr__(self, "export", exports[0] if exports else None)  # the class is frozen
        super().__post_init__()
        if self.json and not self.question:
            raise UserError("--json: needs a question; give one, or leave --json out")
        if self.server.serve is not None and self.question:
            raise UserError(f"{self.question[:40]!r}: a server answers requests; leave the question out")
        if self.server.serve is not None and self.decoding.n_best > 1:
            raise UserError(
                "--n-best and --serve: requests set the number of replies by their field n; leave --n-best out"
            )
        if self.server.serve is not None and self.follow:
            raise UserError("--follow and --serve: a server loads newer checkpoints automatically; leave --follow out")
        if self.export is not None and self.follow:
            raise UserError(f"--follow and --export {self.export}: an export has no newer checkpoints; give --attempt")

    @property
    def question(self) -> str:
        """The question on the command line, or an empty string."""
        return " ".join(word for word in self.words if not word.endswith(ZIP))

    def turns_of(self, trained: int) -> int:
        """Return how many previous turns the model reads. Raises UserError if it was trained with fewer turns."""
        if self.history is not None and self.history > trained:
            model = f"--attempt {self.attempt}" if self.export is None else f"the attempt of --export {self.export}"
            if not trained:
                raise UserError(f"--history {self.history}: {model} reads one question at a time; leave --history out")
            raise UserError(
                f"--history {self.history}: {model} was trained with --history {trained}; give at most {trained}"
            )
        return trained if self.history is None else self.history


@dataclasses.dataclass(frozen=True)
class BotSettings(AnsweringSettings):
    """Settings of the Telegram bot."""

    token_file: str = setting(..., "file that contains the token from @BotFather", group="service", metavar="FILE")
    api_url: str = setting(
        "https://api.telegram.org", "URL of the Telegram Bot API, or of your own Bot API server", metavar="URL"
    )
    ratings: str = setting(
        "data/ratings.jsonl",
        "file to which the commands /good and /bad append the question and the reply",
        group="run",
        metavar="FILE",
    )
    conversations: int = setting(
        1000,
        "maximum number of conversations in memory; above it, the oldest conversation is dropped",
        group="limits",
        minimum=1,
        maximum=1_000_000,
    )
    forget_minutes: float = setting(60.0, "drop a conversation after R minutes without a message", above=0)
    messages_per_minute: int = setting(20, "maximum number of messages answered per conversation per minute", minimum=1)
    reply_seconds: float = setting(30.0, "timeout for each reply, in seconds", above=0, maximum=3600)
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
    example="--attempt weibo",
    common="words attempt export history follow beam_size temperature top_k top_p seed stop retrieve n_best serve",
    positional="words",
)
ASK = CommandLine(
    ChatSettings,
    "ask",
    example="--attempt weibo 你好",
    common="words attempt export json beam_size temperature top_k top_p seed stop retrieve",
    positional="words",
    without=f"history follow n_best {' '.join(flags_of(ServeSettings))}",
)
SERVE = CommandLine(
    ChatSettings,
    "serve",
    example="--attempt weibo",
    common="words attempt export also beam_size temperature top_p retrieve port serve api_key_file cors_origin "
    "allowed_host",
    positional="words",
    without="n_best follow json",
)
TELEGRAM = CommandLine(
    BotSettings,
    "bot telegram",
    example="--attempt weibo --token-file telegram-token",
    common="token_file attempt export ratings messages_per_minute",
    without="n_best",
)


def ask_settings(arguments: Sequence[str] | None = None) -> ChatSettings:
    """Parse the flags of `duida ask`. Raises UserError if there is no question."""
    settings = ASK.parse(arguments)
    if not settings.question.strip():
        raise UserError(f"no question; give one, such as `{ASK.prog} 你好`")
    return settings


def serve_settings(arguments: Sequence[str]) -> ChatSettings:
    """Parse the flags of `duida serve`. By default, the server accepts connections only from this machine."""
    return SERVE.parse(["--serve", "127.0.0.1:8000", *arguments])
