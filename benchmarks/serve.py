"""Measures replies per second and latencies of the server with one client and with many concurrent clients."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.benchmark import ROOT, Benchmark, Recorded, log
from benchmarks.processes import output_of, python, spread
from chatbot.config.corpus import NONE
from chatbot.config.decoding import DecodingSettings
from chatbot.flags import setting

# The decoding settings of each search. DEFAULT is the default search of chat.py. FIELDS contains the searches that are
# chosen by fields of the request to the server. All other searches are chosen by flags of the server.
DEFAULT = "default"
SEARCHES: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "greedy": {"beam_size": 1},
    "sampling": {"temperature": 0.8},
    "candidates": {"candidates": 30, "top_p": 0.8, "rerank": 8.0},
    "beam": {"beam_size": 5},
}
FIELDS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "sampling": {"temperature": 0.8}}
OVER = ENGINE, HTTP = "engine", "http"
WARM_UP = 64
Ask = Callable[[str], Awaitable[None]]  # sends a question and waits for the complete answer
Connect = Callable[[], contextlib.AbstractAsyncContextManager[Ask]]


@dataclasses.dataclass(frozen=True)
class ServeBenchmark(Recorded):
    """The flags of `python -m benchmarks serve`."""

    data: str = setting(
        str(ROOT / "tests/data/chat.tsv"), "file of question-answer pairs", group="data", metavar="FILE"
    )
    attempt: str | None = setting(
        None,
        "folder of an attempt trained in both directions",
        unset="a new attempt, trained for 300 steps without retrieval",
        group="model",
        metavar="FOLDER",
    )
    searches: tuple[str, ...] = setting(
        tuple(SEARCHES), "decoding methods to measure", group="measuring", choices=tuple(SEARCHES)
    )
    over: tuple[str, ...] = setting(OVER, "layers to measure: the engine alone, or the HTTP server", choices=OVER)
    clients: int = setting(64, "number of concurrent clients", minimum=1)
    questions: int = setting(64, "number of questions from a single client", minimum=1)
    rounds: int = setting(3, "number of rounds over all searches; the median is reported", minimum=1)


class Latencies(NamedTuple):
    """The latencies of answers to concurrent clients; see `closed_loop`."""

    seconds: float  # time from the first question to the last answer
    latencies: list[float]  # seconds from each question to its answer

    @property
    def replies_per_s(self) -> float:
        """The number of answers per second."""
        return len(self.latencies) / self.seconds

    def percentile_ms(self, share: float) -> float:
        """Return a percentile of the latencies in milliseconds, given as a fraction from 0 to 1."""
        return 1000 * float(np.quantile(self.latencies, share, method="inverted_cdf"))


async def closed_loop(connect: Connect, questions: Sequence[str], clients: int) -> Latencies:
    """Ask questions with concurrent clients, and measure the latencies.

    Each client waits for an answer before it sends its next question. All clients connect before the measurement
    starts. If a client raises an exception, it is raised here.
    """
    left = list(reversed(questions))
    latencies = list[float]()

    async def client(ask: Ask) -> None:
        while left:
            question = left.pop()
            began = time.perf_counter()
            await ask(question)
            latencies.append(time.perf_counter() - began)

    async with contextlib.AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(connect()) for _ in range(clients)]
        began = time.perf_counter()
        await asyncio.gather(*map(client, connections))
        return Latencies(time.perf_counter() - began, latencies)


def measure(flags: ServeBenchmark) -> dict[str, Any]:
    """Measure all searches, with the server and with the engine (the part that generates replies) alone."""
    lines = Path(flags.data).read_text(encoding="utf-8").splitlines()
    questions = [line.split("\t")[0] for line in lines if line.strip()]
    rounds: dict[str, list[tuple[Latencies, Latencies]]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        attempt = Path(flags.attempt).absolute() if flags.attempt else _train(flags, Path(folder))
        connections: dict[str, Connect] = {}
        for over in flags.over:
            for search in flags.searches:
                open_search = _engine if over == ENGINE else _server
                connections[f"{over}, {search}"] = stack.enter_context(open_search(attempt, search))
        for connect in connections.values():
            for clients in (1, flags.clients):
                asyncio.run(closed_loop(connect, questions[:WARM_UP], clients))
        for number in range(flags.rounds):
            one, many = draw_questions(flags, questions, number)
            for name, connect in connections.items():
                turn = (
                    asyncio.run(closed_loop(connect, one, 1)),
                    asyncio.run(closed_loop(connect, many, flags.clients)),
                )
                rounds.setdefault(name, []).append(turn)
                log(f"round {number + 1}, {name}: {' and '.join(f'{x.replies_per_s:.1f}' for x in turn)} replies/s")
    return {"searches": {name: summarise(own) for name, own in rounds.items()}}


def summarise(rounds: Sequence[tuple[Latencies, Latencies]]) -> dict[str, Any]:
    """Summarise the rounds of a search with one client and with many clients.

    Args:
        rounds: The measurements with one client and with many clients, for each round.

    Returns:
        The median, lowest and highest rate, and the medians of all other values.
    """
    result: dict[str, Any] = {}
    for clients, latencies in zip(("one", "many"), zip(*rounds, strict=True), strict=True):
        result[f"{clients}_replies_per_s"] = spread([x.replies_per_s for x in latencies])
        for share in (50, 99):
            result[f"{clients}_p{share}_ms"] = statistics.median(x.percentile_ms(share / 100) for x in latencies)
    ratios = [(b.replies_per_s / a.replies_per_s, b.percentile_ms(0.99) / a.percentile_ms(0.99)) for a, b in rounds]
    result["ratio"], result["p99_ratio"] = (statistics.median(column) for column in zip(*ratios, strict=True))
    return result


def draw_questions(flags: ServeBenchmark, questions: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """Draw random questions for a measurement with a single client, and for one with many clients.

    If possible, the questions are distinct, because a server may cache answers.
    """
    draw = random.Random(seed)
    different = list(dict.fromkeys(questions))
    numbers = flags.questions, 4 * max(16, flags.clients)
    one, many = (draw.sample(different * -(-number // len(different)), number) for number in numbers)
    return one, many


@contextlib.contextmanager
def _engine(attempt: Path, search: str) -> Iterator[Connect]:
    from chatbot.chat.loading import limit_threads, load_model
    from chatbot.inference.request import Piece, Question

    limit_threads()  # the server does the same
    engine = load_model(attempt, DecodingSettings(**SEARCHES[search])).engine

    async def ask(text: str) -> None:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()

        def receive(message: Any) -> None:
            if isinstance(message, Exception):
                loop.call_soon_threadsafe(answer.set_exception, message)
            elif not isinstance(message, Piece):
                loop.call_soon_threadsafe(answer.set_result, None)

        engine.submit(Question(text, streams=False), receive)
        await answer

    with contextlib.closing(engine):
        yield lambda: contextlib.nullcontext(ask)


@contextlib.contextmanager
def _server(attempt: Path, search: str) -> Iterator[Connect]:
    own = [] if search in FIELDS else [x for k, v in SEARCHES[search].items() for x in (f"--{k.replace('_', '-')}", v)]
    own += [] if search == DEFAULT else ["--retrieve", NONE]
    command = map(str, python(ROOT / "chat.py", "--attempt", attempt, "--serve", "127.0.0.1:0", *own))
    with subprocess.Popen([*command], stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            url = next(word for word in server.stdout.readline().split() if word.startswith("http")).rstrip(";")
            yield functools.partial(connection, int(url.rpartition(":")[2]), FIELDS.get(search, {}))
        finally:
            server.terminate()


@contextlib.asynccontextmanager
async def connection(port: int, fields: Mapping[str, Any]) -> AsyncIterator[Ask]:
    """Connect to a server, retrying until it accepts connections.

    The yielded function raises RuntimeError if the status of a response is not 200.
    """
    for _ in range(600):
        with contextlib.suppress(ConnectionRefusedError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        await asyncio.sleep(0.1)
    else:
        raise RuntimeError("the server does not accept connections")

    async def ask(question: str) -> None:
        body = json.dumps({"messages": [{"role": "user", "content": question}], **fields}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        content = await reader.readexactly(int(length.split(b":")[1]))
        if b" 200 " not in answer.split(b"\r\n")[0]:
            raise RuntimeError(content.decode())

    try:
        yield ask
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def _train(flags: ServeBenchmark, folder: Path) -> Path:
    """Train an attempt in a folder, and return the path of the attempt."""
    own = ["--attempt", "served", "--both-directions", "on", "--preset", "small", "--steps", 300, "--validation", NONE]
    output_of(python(ROOT / "train.py", "--data", Path(flags.data).absolute(), *own), folder)
    return folder / "checkpoints" / "served"


BENCHMARK = Benchmark(
    "serve",
    ServeBenchmark,
    "Measure one client, and many concurrent clients that ask again as soon as they have their answer.",
    measure,
)
