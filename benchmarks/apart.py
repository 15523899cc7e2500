"""Parts of a benchmark in processes of their own, that stay and are asked again and again."""

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any


class Apart:
    """A process that answers. make(*arguments) is called there once, and returns what answers questions."""

    def __init__(self, make: Callable[..., Callable[[str], Any]], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> "Apart":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.join()

    def tell(self, question: str = "") -> None:
        """Ask, and go on."""
        self._connection.send(question)

    def hear(self) -> Any:
        """Wait for the answer. Raises RuntimeError when the process has ended."""
        try:
            return self._connection.recv()
        except EOFError:
            raise RuntimeError("a measured process ended; its error stands above") from None


def together(processes: Sequence[Apart], question: str = "") -> list[Any]:
    """Ask all at the same time."""
    for process in processes:
        process.tell(question)
    return [process.hear() for process in processes]


def _answer(connection: Any, make: Callable[..., Callable[[str], Any]], arguments: tuple[Any, ...]) -> None:
    answer = make(*arguments)
    while True:
        connection.send(answer(connection.recv()))
