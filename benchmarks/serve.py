"""Replies per second and latencies of the server: one client after another, and many clients at once."""

import asyncio
import contextlib
import dataclasses
import functools
import json
import math
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.benchmark import ROOT, Benchmark, Recorded, log
from benchmarks.processes import output_of, python, spread
from chatbot.config.corpus import NONE
from chatbot.config.decoding import DecodingSettings
from chatbot.flags import setting

# The settings of searches, and the fields of requests in place of flags of the server. The default is that of chat.py.
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
Ask = Callable[[str], Awaitable[None]]  # ends when the answer is complete
Connect = Callable[[], contextlib.AbstractAsyncContextManager[Ask]]


@dataclasses.dataclass(frozen=True)
class ServeBenchmark(Recorded):
    """The flags of python -m benchmarks serve."""

    data: str = setting(str(ROOT / "tests/data/chat.tsv"), "question-answer pairs", group="data", metavar="FILE")
    attempt: str | None = setting(
        None,
        "the folder of an attempt that learned both directions",
        unset="train one for 300 steps, which looks no replies up",
        group="model",
        metavar="FOLDER",
    )
    searches: tuple[str, ...] = setting(
        tuple(SEARCHES), "searches to measure", group="measuring", choices=tuple(SEARCHES)
    )
    over: tuple[str, ...] = setting(OVER, "measure the engine alone, the server", choices=OVER)
    clients: int = setting(64, "clients at once", least=1)
    questions: int = setting(64, "questions of one client alone", least=1)
    rounds: int = setting(3, "rounds, each of all searches in turn; medians are reported", least=1)


class Latencies(NamedTuple):
    """What clients measured. seconds: from the first question to the last answer. latencies: of each answer."""

    seconds: float
    latencies: list[float]

    @property
    def replies_per_s(self) -> float:
        """Answers in a second."""
        return len(self.latencies) / self.seconds

    def percentile_ms(self, share: float) -> float:
        """The least latency that this share of the answers does not exceed, in milliseconds."""
        return 1000 * sorted(self.latencies)[max(0, math.ceil(share * len(self.latencies)) - 1)]


async def closed_loop(connect: Connect, questions: Sequence[str], clients: int) -> Latencies:
    """Ask all questions by as many clients at once, which each ask again as soon as they have their answer.

    They connect before. Raises the first exception of an answer.
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
    """Measure each search over each way, in turns."""
    lines = Path(flags.data).read_text(encoding="utf-8").splitlines()
    questions = [line.split("\t")[0] for line in lines if line.strip()]
    rounds: dict[str, list[tuple[Latencies, Latencies]]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        attempt = Path(flags.attempt).absolute() if flags.attempt else _trained(flags, Path(folder))
        connections: dict[str, Connect] = {}
        for over in flags.over:
            for search in flags.searches:
                open_search = _engine if over == ENGINE else _server
                connections[f"{over}, {search}"] = stack.enter_context(open_search(attempt, search))
        for connect in connections.values():
            for clients in (1, flags.clients):
                asyncio.run(closed_loop(connect, questions[:WARM_UP], clients))
        for number in range(flags.rounds):
            one, many = asked(flags, questions, number)
            for name, connect in connections.items():
                turn = (
                    asyncio.run(closed_loop(connect, one, 1)),
                    asyncio.run(closed_loop(connect, many, flags.clients)),
                )
                rounds.setdefault(name, []).append(turn)
                log(f"round {number + 1}, {name}: {' and '.join(f'{x.replies_per_s:.1f}' for x in turn)} replies/s")
    return {"searches": {name: figures(of_search) for name, of_search in rounds.items()}}


def figures(rounds: Sequence[tuple[Latencies, Latencies]]) -> dict[str, Any]:
    """Return what is reported: of the rates, median, lowest and highest round; of all else, the median.

    rounds: of one client, and of many. p99_ratio: both 99th percentiles are of replies of all lengths.
    """
    result: dict[str, Any] = {}
    for clients, latencies in zip(("one", "many"), zip(*rounds, strict=True), strict=True):
        result[f"{clients}_replies_per_s"] = spread([x.replies_per_s for x in latencies])
        for share in (50, 99):
            result[f"{clients}_p{share}_ms"] = statistics.median(x.percentile_ms(share / 100) for x in latencies)
    ratios = [(b.replies_per_s / a.replies_per_s, b.percentile_ms(0.99) / a.percentile_ms(0.99)) for a, b in rounds]
    result["ratio"], result["p99_ratio"] = (statistics.median(column) for column in zip(*ratios, strict=True))
    return result


def asked(flags: ServeBenchmark, questions: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """Return the questions of one client, and those of all, four times as many for each of 16.

    They differ, where there are so many: a server may remember what it has answered.
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

    limit_threads()  # as the server
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
    """Connect to a server, which may not listen yet. A question raises RuntimeError for another answer than 200."""
    for _ in range(600):
        with contextlib.suppress(ConnectionRefusedError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        await asyncio.sleep(0.1)
    else:
        raise RuntimeError("the server does not listen")

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


def _trained(flags: ServeBenchmark, folder: Path) -> Path:
    """Train an attempt in a folder, and return its directory."""
    own = ["--attempt", "served", "--both-directions", "on", "--preset", "small", "--steps", 300, "--validation", NONE]
    output_of(python(ROOT / "train.py", "--data", Path(flags.data).absolute(), *own), folder)
    return folder / "checkpoints" / "served"


serve_benchmark = Benchmark(
    "serve",
    ServeBenchmark,
    "Measure one client after another and many at once, each asking again when it has its answer.",
    measure,
)
