"""chat.py --serve: the server as a process, until a signal ends it."""

import contextlib
import functools
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from chatbot.attempts.files import trained_directory
from chatbot.chat.server.app import create_app
from chatbot.chat.server.connection import server_config
from chatbot.chat.server.gate import read_keys
from chatbot.chat.server.models import Models, models_of, open_model
from chatbot.chat.server.state import Limits, ServerState
from chatbot.config.attempts import RATINGS
from chatbot.config.chat import ChatSettings
from chatbot.display import counted
from chatbot.errors import UserError
from chatbot.export.manifest import folder_of, read_manifest

log = logging.getLogger(__name__)
LOOPBACK = ("127.0.0.1", "::1", "localhost")
SHOWN_MODELS = 5


def serve(settings: ChatSettings) -> int:
    """Serve the API until SIGTERM or Ctrl-C. Returns the exit code, always 0.

    Raises UserError for an address that cannot be used, a key file without keys, and a model that cannot be loaded.
    """
    server = settings.server
    keys = read_keys(Path(server.api_key_file)) if server.api_key_file is not None else []
    host, _ = server.address
    listener = listening_socket(*server.address)
    with contextlib.closing(listener):
        directories = models_of(_named(settings), server.all_attempts)
        open_chosen = functools.partial(
            open_model, decoding=settings.decoding, history=settings.history, most_waiting=server.queue
        )
        models = Models(directories, open_chosen, memory_limit(server.serve_memory))
        name, directory = next(iter(directories().items()))
        model = open_chosen(directory)
        settings.turns_of(model.turns)
        _log_to_standard_error()
        models.put(name, model)
        del model  # it is freed when a newer one has taken its place
        names_given = {name.lower() for name in server.allowed_host}
        hosts = {*LOOPBACK, host.lower(), *names_given} if names_given or is_loopback(host) else None
        limits = Limits(keys, hosts, server.rate_limit, server.queue, live_ratings=server.live_ratings)
        app = create_app(
            models,
            limits,
            request_timeout=server.request_timeout,
            cors_origins=server.cors_origin,
            log_conversation=functools.partial(print, flush=True) if server.log_conversations else None,
            log_access=functools.partial(print, flush=True, file=sys.stderr) if server.log_access else None,
            ratings=None if server.no_ratings else RATINGS,
        )
        names = list(directories())
        shown = ", ".join(names[:SHOWN_MODELS]) + (", ..." if len(names) > SHOWN_MODELS else "")
        print(f"Serving {shown} at {url_of(listener)}; Ctrl-C stops it", flush=True)
        if warning := warning_of(host, keys, server.allowed_host):
            print(warning, file=sys.stderr, flush=True)
        config = server_config(app, server.request_timeout, server.queue, server.trusted_proxy)
        if server.api_key_file is not None and hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, lambda *_: reload_keys(Path(server.api_key_file or ""), keys))
        _Server(config, app.state.server).run(sockets=[listener])
    return 0


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; uvicorn makes it listen. Raises UserError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        remedy = "give an address of this machine and a free port, such as --port 8001"
        raise UserError(f"--serve {host}:{port}: {reason}; {remedy}") from None
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reload_keys(path: Path, keys: list[bytes]) -> None:
    """Replace the keys by those that the file has now, unless it cannot be used, which is logged."""
    try:
        keys[:] = read_keys(path)
        log.warning("--api-key-file: %s", counted(len(keys), "key"))
    except UserError as error:
        log.error("%s; the earlier keys stay valid", error)


def _named(settings: ChatSettings) -> list[Path]:
    """Return the directories of the models that the command line names; none for --all-attempts without a default.

    Raises UserError for one that is not there.
    """
    named = [trained_directory(name, "--also") for name in settings.server.also]
    if settings.export is not None:
        folder = folder_of(Path(settings.export).absolute())
        read_manifest(folder)
        named = [folder, *named]
    else:
        try:
            named = [trained_directory(settings.attempt), *named]
        except UserError:
            if settings.attempt != ChatSettings.attempt or not (settings.server.all_attempts and models_of([], True)()):
                raise
    return list(dict.fromkeys(named))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host."""
    return host.lower() in LOOPBACK or host.startswith("127.")


def warning_of(host: str, keys: Sequence[bytes], allowed_hosts: Sequence[str]) -> str:
    """Return the warning that anyone may use a server; "" for one with keys or on the loopback."""
    if keys or is_loopback(host):
        return ""
    pages, remedy = ("", "") if allowed_hosts else (", web pages of any site, too,", " or --allowed-host NAME")
    return f"Warning: other machines may reach {host}{pages} and no key is needed; add --api-key-file FILE{remedy}"


def memory_limit(megabytes: int | None) -> int:
    """Return the bytes that models may take at once: --serve-memory, by default half of the machine's memory."""
    if megabytes is not None:
        return megabytes * 10**6
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):  # not of this system
        return 4 * 10**9


def _log_to_standard_error() -> None:
    """Log warnings as lines without tracebacks."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _Server(uvicorn.Server):
    """Ends gracefully with exit code 0 at the first signal, and at once at the second."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals in the block. uvicorn would raise them again after it."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop: at once if this was called before."""
        if self.should_exit:
            os._exit(128 + sig)
        self._state.stopping = self.should_exit = True
