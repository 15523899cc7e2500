"""A real server on the loopback, in a thread of a test's process."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from chatbot.chat.listening import listening_socket
from chatbot.chat.server.run import server_config, url_of


@contextlib.contextmanager
def running(app: FastAPI, request_timeout: float = 10.0) -> Iterator[str]:
    """The URL of a server that answers in the block."""
    listener = listening_socket("--serve", "127.0.0.1", 0)
    server = uvicorn.Server(server_config(app, request_timeout))
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
