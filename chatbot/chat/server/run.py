"""Runs the server until a signal stops it."""

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
from chatbot.chat.server.models import Models, model_lister, open_model
from chatbot.chat.server.state import Limits, ServerState
from chatbot.config.attempts import RATINGS
from chatbot.config.chat import ChatSettings
from chatbot.display import pluralize
from chatbot.errors import UserError
from chatbot.export.manifest import open_export, read_manifest

log = logging.getLogger(__name__)
LOOPBACK = ("127.0.0.1", "::1", "localhost")
# The maximum number of models to list in the startup message.
MAX_SHOWN_MODELS = 5


def serve(settings: ChatSettings) -> int:
    """Serve the API until the process receives SIGTERM or SIGINT. Always returns exit code 0.

    Raises:
        UserError: If the address is not available, or if the API keys or the model cannot be loaded.
    """
    server = settings.server
    keys = read_keys(Path(server.api_key_file)) if server.api_key_file is not None else []
    host, _ = server.address
    listener = listening_socket(*server.address)
    with contextlib.closing(listener):
        directories = model_lister(_find_directories(settings), server.all_attempts)
        open_with_settings = functools.partial(
            open_model, decoding=settings.decoding, history=settings.history, most_waiting=server.queue
        )
        models = Models(directories, open_with_settings, memory_limit(server.serve_memory))
        name, directory = next(iter(directories().items()))
        model = open_with_settings(directory)
        settings.turns_of(model.turns)
        _configure_logging()
        models.put(name, model)
        del model  # Otherwise, this reference would keep the model in memory after it is replaced.
        allowed_hosts = {name.lower() for name in server.allowed_host}
        hosts = {*LOOPBACK, host.lower(), *allowed_hosts} if allowed_hosts or is_loopback(host) else None
        limits = Limits(keys, hosts, server.rate_limit, server.queue, live_ratings=server.live_ratings)
        app = create_app(
            models,
            limits,
            request_timeout=server.request_timeout,
            cors_origins=server.cors_origin,
            log_conversation=functools.partial(print, flush=True) if server.log_conversations else None,
            log_access=functools.partial(print, file=sys.stderr) if server.log_access else None,
            ratings=None if server.no_ratings else RATINGS,
        )
        names = list(directories())
        shown_names = ", ".join(names[:MAX_SHOWN_MODELS]) + (", ..." if len(names) > MAX_SHOWN_MODELS else "")
        print(f"Serving {shown_names} at {socket_url(listener)}; press Ctrl-C to stop", flush=True)
        if warning := access_warning(host, keys, server.allowed_host):
            print(warning, file=sys.stderr)
        config = server_config(app, server.request_timeout, server.queue, server.trusted_proxy)
        if server.api_key_file is not None and hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, lambda *_: reload_keys(Path(server.api_key_file or ""), keys))
        _Server(config, app.state.server).run(sockets=[listener])
    return 0


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a host and a port. Raises UserError if this fails."""
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
        remedy = "use an address of this machine and a free port, such as --port 8001"
        raise UserError(f"--serve {host}:{port}: {reason}; {remedy}") from None
    return listener


def socket_url(listener: socket.socket) -> str:
    """Return the URL of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reload_keys(path: Path, keys: list[bytes]) -> None:
    """Read the API keys again from a file. If this fails, log the error and keep the old keys."""
    try:
        keys[:] = read_keys(path)
        log.warning("--api-key-file: %s", pluralize(len(keys), "key"))
    except UserError as error:
        log.error("%s; the old keys remain valid", error)


def _find_directories(settings: ChatSettings) -> list[Path]:
    """Return the directories of the models that are named on the command line.

    Raises:
        UserError: If a model does not exist. With --all-attempts, the default model may be missing.
    """
    directories = [trained_directory(name, "--also") for name in settings.server.also]
    if settings.export is not None:
        folder = open_export(Path(settings.export).absolute())
        read_manifest(folder)
        directories = [folder, *directories]
    else:
        try:
            directories = [trained_directory(settings.attempt), *directories]
        except UserError:
            if settings.attempt != ChatSettings.attempt or not (
                settings.server.all_attempts and model_lister([], True)()
            ):
                raise
    return list(dict.fromkeys(directories))


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach the host."""
    return host.lower() in LOOPBACK or host.startswith("127.")


def access_warning(host: str, keys: Sequence[bytes], allowed_hosts: Sequence[str]) -> str:
    """Return a warning if other machines can use the server without an API key, or else an empty string."""
    if keys or is_loopback(host):
        return ""
    users, remedy = ("", "") if allowed_hosts else (" and web pages of any site", " or --allowed-host NAME")
    return f"Warning: other machines{users} can use {host} without a key; add --api-key-file FILE{remedy}"


def memory_limit(megabytes: int | None) -> int:
    """Return the memory limit for models, in bytes. The default is half of the memory of this machine."""
    if megabytes is not None:
        return megabytes * 10**6
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):  # Some systems cannot report their memory.
        return 4 * 10**9


def _configure_logging() -> None:
    """Log each warning to standard error on one line, without a traceback."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(message)s")
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


class _Server(uvicorn.Server):
    """A uvicorn server. On the first signal, it shuts down gracefully. On the second signal, it exits immediately."""

    def __init__(self, config: uvicorn.Config, state: ServerState) -> None:
        super().__init__(config)
        self._state = state

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while a `with` block runs. Unlike uvicorn, do not raise the signals again afterwards."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down the server, or exit immediately if this is the second signal."""
        if self.should_exit:
            os._exit(128 + sig)
        self._state.stopping = self.should_exit = True
