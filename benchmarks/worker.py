"""Measurements in separate processes, which stay alive and answer requests."""

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any


class Worker:
    """A spawned process. It calls make(*arguments) once; the function that this returns answers each request."""

    def __init__(self, make: Callable[..., Callable[[str], Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(remote, make, arguments), daemon=True)
        self._process.start()
        remote.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.join()

    def send(self, request: str = "") -> None:
        """Send a request without waiting for the answer."""
        self._connection.send(request)

    def receive(self) -> Any:
        """Wait for the answer. Raises RuntimeError when the process has ended."""
        try:
            return self._connection.recv()
        except EOFError:
            raise RuntimeError("a measured process ended; its error is printed above") from None


def ask_all(workers: Sequence[Worker], request: str = "") -> list[Any]:
    """Send a request to all workers at the same time. Returns their answers in order."""
    for worker in workers:
        worker.send(request)
    return [worker.receive() for worker in workers]


def _serve(connection: Any, make: Callable[..., Callable[[str], Any]], arguments: tuple[Any, ...]) -> None:
    answer = make(*arguments)
    while True:
        connection.send(answer(connection.recv()))
