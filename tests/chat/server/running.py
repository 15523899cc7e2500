"""A real server on the loopback, in a thread of a test's process."""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from chatbot.chat.server.connection import server_config
from chatbot.chat.server.run import listening_socket, url_of


@contextlib.contextmanager
def running(app: Any, request_timeout: float = 240.0, **settings: Any) -> Iterator[str]:
    """The URL of a server that answers in the block. settings: of uvicorn."""
    listener = listening_socket("127.0.0.1", 0)
    config = server_config(app, request_timeout)
    for name, value in settings.items():
        setattr(config, name, value)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def connection(url: str) -> socket.socket:
    """A connection to a server, for bytes that no client would send."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=240)


def received(client: socket.socket) -> bytes:
    """All that a server sends until it closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(1 << 16):
            data += part
    return data


def run_until_sigterm(serve: Callable[[], int], session: Callable[[], None]) -> int:
    """Serve in this thread while a session goes on in another one, and end it by SIGTERM. Return the exit code."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    ended = threading.Event()

    def act() -> None:
        try:
            session()
        finally:
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        return serve()
    finally:
        ended.set()
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
