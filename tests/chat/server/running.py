"""A real server on the loopback, in a thread of the test's process."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import uvicorn

from chatbot.chat.server.connection import server_config
from chatbot.chat.server.run import listening_socket, socket_url


@contextlib.contextmanager
def running(app: Any, request_timeout: float = 240.0, **settings: Any) -> Iterator[str]:
    """Run a server during the block, and yield its URL. settings: settings of uvicorn."""
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
        yield socket_url(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def connection(url: str) -> socket.socket:
    """Return a socket connected to a server, for requests that no client would send."""
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=240)


def received(client: socket.socket) -> bytes:
    """Return everything that a server sends until it closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(1 << 16):
            data += part
    return data


async def status_of(
    app: Any,
    method: str,
    path: str,
    body: bytes = b"",
    changes: Mapping[str, Any] | None = None,
    is_whole: bool = True,
    leaves: threading.Event | None = None,
) -> int:
    """Return the status of an app's response to a request with a body in parts; 0 if there is no response.

    changes: changes of the scope. is_whole: whether the body is complete. leaves: set when the client disconnects.
    """
    parts = [body[begin : begin + 65536] for begin in range(0, len(body), 65536)] or [b""]
    statuses = [0]

    async def receive() -> Any:
        await asyncio.sleep(0)
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts) or not is_whole}
        await (asyncio.Event().wait() if leaves is None else asyncio.to_thread(leaves.wait, 60))
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        statuses.append(message.get("status", statuses[-1]))

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b"", "client": None}
    await app({**scope, **(changes or {})}, receive, send)
    return statuses[-1]


def run_until_sigterm(serve: Callable[[], int], session: Callable[[], None]) -> int:
    """Serve in this thread during a session in another thread, then send SIGTERM. Return the exit code."""
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
