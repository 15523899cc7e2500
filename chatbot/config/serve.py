"""The settings of chat.py --serve."""

import contextlib
import dataclasses
import ipaddress
import re

from chatbot.errors import UserError
from chatbot.flags import Flags, flag_of, setting

SERVER = "server"


@dataclasses.dataclass(frozen=True)
class ServeSettings(Flags):
    """The settings of the server of the API and the page. Raises UserError for a flag without --serve."""

    serve: str | None = setting(
        None,
        "serve OpenAI's API and a page at this address",
        default_text="none, of `serve` 127.0.0.1:8000",
        group=SERVER,
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
        (),
        "names for this server beside localhost and addresses",
        default_text="any, on 127.0.0.1 none",
        metavar="NAME",
    )
    trusted_proxy: tuple[str, ...] = setting(
        (),
        "addresses or networks of proxies whose X-Forwarded-For names the client",
        default_text="none",
        metavar="ADDRESS",
    )
    rate_limit: int = setting(
        0, "replies a minute of one client; beyond it status 429; 0: no limit", least=0, most=10**6
    )
    queue: int = setting(256, "requests that are computed or wait at once; beyond it status 429", least=1, most=10**5)
    request_timeout: float = setting(60.0, "seconds for a request, also while the server stops", above=0, most=3600)
    serve_memory: int | None = setting(
        None, "megabytes for models in memory at once", default_text="half of the machine's", least=1, metavar="MB"
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
