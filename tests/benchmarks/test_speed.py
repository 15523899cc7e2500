"""The benchmarks of training, decoding, reading, serving and scaling: what is measured, and small runs."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.corpus import encoding
from benchmarks.cost import CostBenchmark, growth_ratios, training_worker
from benchmarks.opened_step import pairs_of_one_length
from benchmarks.scaling import ScalingBenchmark, join_rows, tower_devices
from benchmarks.serve import Ask, Latencies, ServeBenchmark, closed_loop, connection, draw_questions, summarise
from benchmarks.soak import Sample, growth
from chatbot.errors import UserError
from tests.benchmarks.running import benchmark

TINY = ["--rnn-size", "8", "--num-layers", "1", "--embedding-size", "8", "--batch-size", "8", "--rounds", "1"]


def test_drawn_pairs_have_one_length_and_the_words_of_a_text() -> None:
    flags = ScalingBenchmark(vocabulary_size=1000, max_length=7)
    pairs = pairs_of_one_length(flags.settings, 1000, 500)
    assert {*pairs.sources.lengths} == {7}
    assert {*pairs.targets.lengths} == {6}
    ids = pairs.sources.joined()
    assert 3 < ids.min() < ids.max() < 1000
    assert np.median(ids) < 100  # Zipf's law: half of the words are among the most frequent ones


def test_cost_of_a_step() -> None:
    flags = CostBenchmark(rnn_size=8, num_layers=1, embedding_size=8, max_length=3, batch_size=4, steps=1)
    row = training_worker(flags, "vocabulary_size", 500)()
    assert row["target_tokens_per_s"] == pytest.approx(4 * 3 / row["step_s"], rel=0.1)
    assert row["first_step_s"] > row["step_s"]
    assert row["traces"] == 1
    assert row["weights"] > 500 * (8 + 1)  # the embedding, also the projection, and its bias


def test_growth_ratios_are_relative_to_linear_growth() -> None:
    rows = [{"what": "batch_size", "value": 2**i, "step_s": 2.0**i} for i in range(3)]
    rows += [{"what": "rnn_size", "value": 2**i, "step_s": 5.0**i} for i in range(2)]
    assert [growth["ratio"] for growth in growth_ratios(rows)] == [1.0, 1.0, 1.25]


def test_growth_compares_the_ends_after_the_warm_up() -> None:
    """A hundred samples: the first twenty do not count, and a single peak does not either."""
    samples = [Sample(1.0 if i < 20 else 100.0 + (i >= 80), 12, 9 + (i > 50), 98) for i in range(100)]
    samples[90] = Sample(500.0, 99, 99, 99)
    medians = {"megabytes": [100.0, 101.0], "files": [12, 12], "threads": [9, 10], "functions": [98, 98]}
    assert growth(samples) == {"memory_growth": pytest.approx(0.01), **medians, "failed": True}
    constant = [sample._replace(threads=9) for sample in samples]
    assert not growth(constant)["failed"]
    assert growth([s._replace(megabytes=100 + 3 * (i > 50)) for i, s in enumerate(constant)])["failed"]
    with pytest.raises(UserError, match="--minutes: too short"):
        growth(samples[:3])


def test_encoding(pairs: str, tmp_path: Path) -> None:
    report = encoding(pairs, tmp_path)
    assert report["pairs_per_s"] == pytest.approx(40 / report["encode_seconds"], rel=0.1)
    assert 0.05 < report["encode_peak_gb"] < 20


@pytest.mark.slow
def test_train_benchmark_runs(pairs: str) -> None:
    report = benchmark("train", "--data", pairs, *TINY, "--steps", "2")
    assert report["target_tokens_per_s"].keys() == {"float32", "bfloat16"}
    assert all(rate["median"] > 0 for rate in report["target_tokens_per_s"].values())


@pytest.mark.slow
def test_decode_benchmark_runs(pairs: str) -> None:
    report = benchmark("decode", "--data", pairs, *TINY, "--steps", "2", "--questions", "3")
    assert len(report["replies_per_s"]) == 4
    assert all(rate["median"] > 0 for rate in report["replies_per_s"].values())
    assert report["cold_ratio"] > 0


@pytest.mark.parametrize("clients", [1, 3, 20])
def test_clients_ask_each_question_once_with_bounded_concurrency(clients: int) -> None:
    questions, asked, waiting, connected = [str(number) for number in range(10)], list[str](), 0, 0

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[Ask]:
        nonlocal connected
        connected += 1

        async def ask(text: str) -> None:
            nonlocal waiting
            assert connected == clients
            asked.append(text)
            waiting += 1
            assert waiting <= clients
            await asyncio.sleep(0)
            waiting -= 1

        yield ask
        connected -= 1

    found = asyncio.run(closed_loop(connect, questions, clients))
    assert asked == questions
    assert len(found.latencies) == len(questions)
    assert connected == 0


def test_figures_of_rounds() -> None:
    turn = Latencies(2.0, [i / 1000 for i in range(1, 101)])
    assert [turn.percentile_ms(share) for share in (0, 0.5, 0.99, 1)] == [1, 50, 99, 100]
    rounds = [(Latencies(seconds, [0.5]), Latencies(seconds, [0.5] * 8)) for seconds in (1.0, 2.0, 4.0)]
    result = summarise(rounds)
    assert result["one_replies_per_s"] == {"median": 0.5, "lowest": 0.25, "highest": 1}
    assert (result["many_replies_per_s"]["median"], result["many_p99_ms"]) == (4, 500)
    assert (result["ratio"], result["p99_ratio"]) == (8, 1)


def test_each_round_asks_other_questions() -> None:
    questions = [str(number) for number in range(1000)]
    rounds = [draw_questions(ServeBenchmark(clients=20), questions, number) for number in range(2)]
    for one, many in rounds:
        assert (len(one), len(many)) == (64, 80)
        assert len({*many}) == len(many)
    assert rounds[0] != rounds[1]
    assert len(draw_questions(ServeBenchmark(), ["a", "b"], 0)[1]) == 256


def test_other_status_than_200_ends_a_measurement() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            head = await reader.readuntil(b"\r\n\r\n")
            body = json.loads(await reader.readexactly(int(head.rpartition(b":")[2])))
            status, text = ("200 OK", "x") if body["messages"][0]["content"] == "hello" else ("503 Busy", "too many")
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
        writer.close()
        await writer.wait_closed()

    async def asked_twice() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1")
        async with server, connection(server.sockets[0].getsockname()[1], {"temperature": 0}) as ask:
            await ask("hello")
            with pytest.raises(RuntimeError, match="too many"):
                await ask("other")

    asyncio.run(asked_twice())


@pytest.mark.slow
def test_serve_benchmark_runs() -> None:
    flags = ["--searches", "default", "greedy", "--clients", "2", "--questions", "3", "--rounds", "1"]
    searches = benchmark("serve", *flags)["searches"]
    assert [*searches] == ["engine, default", "engine, greedy", "http, default", "http, greedy"]
    assert all(row["many_replies_per_s"]["median"] > 0 for row in searches.values())


def test_numbers_of_towers() -> None:
    for towers, numbers in {0: [], 1: [1], 6: [1, 2, 4], 8: [1, 2, 4, 8]}.items():
        assert ScalingBenchmark(towers=towers).tower_numbers == numbers
    assert [tower_devices(*x) for x in ((4, 0), (4, 1), (2, 4), (4, 4))] == [1, 1, 2, 4]
    with pytest.raises(UserError, match="--towers 8: more than the 4 pairs of a step"):
        benchmark("scaling", "--towers", "8", "--batch-size", "4")


def test_rows_of_processes_are_combined() -> None:
    row: dict[str, Any] = {"number": 1, "examples_per_s": 3.0, "target_tokens_per_s": 30.0, "input_wait": 0.1}
    rows = [{**row, "step_s": seconds} for seconds in (1.0, 2.0)]
    two = {"number": 2, "examples_per_s": 6, "target_tokens_per_s": 60, "step_s": 2, "input_wait": 0.1}
    assert join_rows(rows) == two
    assert join_rows([{**row, "number": 2} for row in rows]) == {**two, "examples_per_s": 3, "target_tokens_per_s": 30}


@pytest.mark.slow
def test_scaling_benchmark_runs() -> None:
    report = benchmark("scaling", *TINY, "--vocabulary-size", "300", "--steps", "1", "--towers", "2")
    assert [row["number"] for row in report["towers"]] == [1, 2]
    assert [row["number"] for row in report["processes"].values()] == [1, 2, 2]
    assert report["processes"]["one"]["speed_up"] == 1
