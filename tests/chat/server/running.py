"""A real server on the loopback, in a thread of a test's process."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn

from chatbot.chat.server.connection import server_config
from chatbot.chat.server.run import url_of
from chatbot.chat.service import listening_socket


@contextlib.contextmanager
def running(app: Any, request_timeout: float = 10.0, **settings: Any) -> Iterator[str]:
    """The URL of a server that answers in the block. settings: of uvicorn."""
    listener = listening_socket("--serve", "127.0.0.1", 0)
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
    return socket.create_connection((host, int(port)), timeout=10)


def received(client: socket.socket) -> bytes:
    """All that a server sends until it closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(1 << 16):
            data += part
    return data
