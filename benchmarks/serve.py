"""Replies per second and latencies of the server: one client after another, and many clients at once."""

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.closed_loop import Latencies, closed_loop
from benchmarks.report import log, print_json
from chatbot.command_line import CommandLine
from chatbot.config.decoding import DecodingSettings
from chatbot.config.stored import with_default_search
from chatbot.flags import Flags, setting

ROOT = Path(__file__).parents[1]
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
WARM_UP = 64


@dataclasses.dataclass(frozen=True)
class ServeBenchmark(Flags):
    """The flags of python -m benchmarks serve."""

    data: str = setting(str(ROOT / "tests/data/chat.tsv"), "question-answer pairs", group="data", metavar="FILE")
    attempt: str | None = setting(
        None,
        "the folder of an attempt that learned both directions; default: train one, which looks no replies up",
        group="model",
        metavar="FOLDER",
    )
    rnn_size: int = setting(256, "units of each recurrent layer", least=1)
    num_layers: int = setting(1, "recurrent layers", least=1)
    vocabulary_size: int = setting(8000, "size of the vocabulary", least=300)
    preset: str = setting("small", "--preset of the attempt", metavar="NAME")
    steps: int = setting(300, "steps of training", least=1)
    searches: tuple[str, ...] = setting(
        tuple(SEARCHES), "searches to measure", group="measuring", choices=tuple(SEARCHES)
    )
    over: tuple[str, ...] = setting(
        ("engine", "http"), "measure the engine alone, the server", choices=("engine", "http")
    )
    clients: int = setting(64, "clients at once", least=1)
    questions: int = setting(64, "questions of one client alone", least=1)
    rounds: int = setting(3, "rounds, each of all searches in turn; medians are reported", least=1)


def serve_benchmark(arguments: Sequence[str]) -> int:
    """Measure, print a line for each search, and as the last line one JSON object."""
    about = "Measure one client after another and many at once, each asking again when it has its answer."
    flags = CommandLine(ServeBenchmark, "benchmarks serve", about).parse(arguments)
    lines = Path(flags.data).read_text(encoding="utf-8").splitlines()
    questions = [line.split("\t")[0] for line in lines if line.strip()]
    rounds: dict[str, list[tuple[Latencies, Latencies]]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        attempt = Path(flags.attempt).absolute() if flags.attempt else _trained(flags, Path(folder))
        measures = {
            f"{over}, {search}": stack.enter_context(contextlib.closing(measure(flags, attempt, search, questions)))
            for over, measure in (("engine", _of_engine), ("http", _of_server))
            for search in flags.searches
            if over in flags.over
        }
        for number in range(flags.rounds):
            for name, measure in measures.items():
                rounds.setdefault(name, []).append(next(measure))
                single, many = rounds[name][-1]
                log(f"round {number + 1}, {name}: {single.replies_per_s:.1f} and {many.replies_per_s:.1f} replies/s")
    results = {name: figures(of_search) for name, of_search in rounds.items()}
    print(f"Replies a second and 99th percentiles of one client, and of {flags.clients} at once:")
    for name, result in results.items():
        shown = [
            f"{result[f'{of}replies_per_s']:7.1f} ({low:.1f} to {high:.1f}) {result[f'{of}p99_ms']:6.0f} ms"
            for of, (low, high) in (("single_", result["single_range"]), ("", result["range"]))
        ]
        print(f"{name:>18}: {'; '.join(shown)}; {result['ratio']:.1f} times")
    print_json({"cores": len(os.sched_getaffinity(0)), **dataclasses.asdict(flags), "results": results})
    return 0


def figures(rounds: Sequence[tuple[Latencies, Latencies]]) -> dict[str, Any]:
    """Return what is reported: medians of the rounds, and the ranges of the rates.

    rounds: of one client, and of many. p99_over_single: both 99th percentiles are of replies of all lengths.
    """
    single, many = zip(*rounds, strict=True)

    rates = [[latencies.replies_per_s for latencies in of_clients] for of_clients in (single, many)]
    return {
        "single_replies_per_s": statistics.median(rates[0]),
        "single_range": [min(rates[0]), max(rates[0])],
        "single_p50_ms": statistics.median(x.median_ms for x in single),
        "single_p99_ms": statistics.median(x.percentile_ms(0.99) for x in single),
        "replies_per_s": statistics.median(rates[1]),
        "range": [min(rates[1]), max(rates[1])],
        "p50_ms": statistics.median(x.median_ms for x in many),
        "p99_ms": statistics.median(x.percentile_ms(0.99) for x in many),
        "ratio": statistics.median(b / a for a, b in zip(*rates, strict=True)),
        "p99_over_single": statistics.median(b.percentile_ms(0.99) / a.percentile_ms(0.99) for a, b in rounds),
    }


def _asked(flags: ServeBenchmark, questions: Sequence[str], seed: int) -> tuple[list[str], list[str]]:
    """Return the questions of one client, and those of all, four times as many for each of 16.

    They differ, where there are so many: a server may remember what it has answered.
    """
    draw, different = random.Random(seed), list(dict.fromkeys(questions))
    numbers = flags.questions, 4 * max(16, flags.clients)
    one, many = (draw.sample(different * -(-number // len(different)), number) for number in numbers)
    return one, many


def _of_engine(
    flags: ServeBenchmark, attempt: Path, search: str, questions: Sequence[str]
) -> Generator[tuple[Latencies, Latencies], None, None]:
    from chatbot.chat.loading import limit_threads, load_model
    from chatbot.inference.engine import Engine
    from chatbot.inference.questions import Piece, Question

    limit_threads()  # as the server
    decoding = DecodingSettings(**SEARCHES[search])
    if search == DEFAULT:
        decoding = with_default_search(decoding, attempt)
    engine = Engine(load_model(attempt).responder_of(decoding))

    def ask(text: str, done: Any) -> None:
        def receive(message: Any) -> None:
            if not isinstance(message, Piece):
                done(message if isinstance(message, Exception) else None)

        engine.submit(Question(text, streams=False), receive)

    try:
        closed_loop(ask, questions[:WARM_UP], 1)
        closed_loop(ask, questions[:WARM_UP], flags.clients)
        for number in range(flags.rounds):
            one, all_of_them = _asked(flags, questions, number)
            yield closed_loop(ask, one, 1), closed_loop(ask, all_of_them, flags.clients)
    finally:
        engine.close()


def _of_server(
    flags: ServeBenchmark, attempt: Path, search: str, questions: Sequence[str]
) -> Generator[tuple[Latencies, Latencies], None, None]:
    own = [] if search in FIELDS else [x for k, v in SEARCHES[search].items() for x in (f"--{k.replace('_', '-')}", v)]
    own += [] if search == DEFAULT else ["--retrieve", "none"]
    command = [sys.executable, ROOT / "chat.py", "--attempt", attempt, "--serve", "127.0.0.1:0", *own]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, encoding="utf-8", cwd=ROOT) as server:
        try:
            assert server.stdout is not None
            url = next(word for word in server.stdout.readline().split() if word.startswith("http")).rstrip(";")
            port, fields = int(url.rpartition(":")[2]), FIELDS.get(search, {})
            asyncio.run(clients_of_server(port, fields, questions[:WARM_UP], 1))
            asyncio.run(clients_of_server(port, fields, questions[:WARM_UP], flags.clients))
            for number in range(flags.rounds):
                one, many = _asked(flags, questions, number)
                yield (
                    asyncio.run(clients_of_server(port, fields, one, 1)),
                    asyncio.run(clients_of_server(port, fields, many, flags.clients)),
                )
        finally:
            server.terminate()


async def clients_of_server(port: int, fields: dict[str, Any], questions: Sequence[str], clients: int) -> Latencies:
    """Ask all questions over as many connections, which stay open. Raises RuntimeError for another answer than 200."""
    left, latencies = list(reversed(questions)), []

    async def ask_until_none_is_left() -> None:
        reader, writer = await _connected(port)
        while left:
            body = json.dumps({"messages": [{"role": "user", "content": left.pop()}], **fields}).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            began = time.perf_counter()
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            content = await reader.readexactly(int(length.split(b":")[1]))
            latencies.append(time.perf_counter() - began)
            if b" 200 " not in answer.split(b"\r\n")[0]:
                raise RuntimeError(content.decode())
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    began = time.perf_counter()
    await asyncio.gather(*(ask_until_none_is_left() for _ in range(clients)))
    return Latencies(time.perf_counter() - began, latencies)


async def _connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a server that may not listen yet."""
    for _ in range(600):
        with contextlib.suppress(ConnectionRefusedError):
            return await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(0.1)
    raise RuntimeError("the server does not listen")


def _trained(flags: ServeBenchmark, folder: Path) -> Path:
    """Train an attempt in a folder, and return its directory."""
    names = ("data", "rnn_size", "num_layers", "vocabulary_size", "preset", "steps")
    given = {name: getattr(flags, name) for name in names} | {"embedding_size": flags.rnn_size}
    given["data"] = Path(flags.data).absolute()
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = [sys.executable, str(ROOT / "train.py"), "--attempt", "served", "--both-directions", "on", *words]
    subprocess.run([*command, "--validation", "none"], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return folder / "checkpoints" / "served"
