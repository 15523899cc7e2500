"""Makes the tables of benchmarks/README.md from the recorded results of benchmarks, benchmarks/results/*.json.

    python docs/pictures/benchmark_tables.py

`python -m benchmarks NAME ... --record FILE` writes a file of results. tests/benchmarks/test_benchmark.py fails where a
table is not that of the results. The table of ratings is written by hand.
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks" / "README.md"
Row = Sequence[str]


def results(name: str) -> dict[str, Any]:
    """The recorded results of this name."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return found


def with_tables(text: str) -> str:
    """The document with tables of the recorded results. Raises ValueError where it lacks one of their headings."""
    for headings, *rows in (quality(), speed(), serving(), scaling()):
        lines = [f"| {' | '.join(headings)} |".replace("|  |", "| |"), "|---" * len(headings) + "|"]
        lines += [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
        found = re.findall(rf"^{re.escape(lines[0])}\n(?:\|.*\n)+", text, re.MULTILINE)
        if len(found) != 1:
            raise ValueError(f"benchmarks/README.md: no table, or several, with the headings {headings}")
        text = text.replace(found[0], "\n".join([*lines, ""]))
    return text


def quality() -> list[Row]:
    """Nats per character of each model."""
    peers, own = results("compare-recurrent")["quality"], results("quality")
    runs = {run["preset"]: run for run in own["runs"]}
    rows = {
        "the same model in PyTorch 2.13": peers["PyTorch"],
        "this project, the same model": peers["this project, the same model"],
        "OpenNMT-py 3.5.1, LSTM 512 x 2; by an earlier version": peers["OpenNMT-py"],
    }
    of_counts = {
        "Kneser-Ney, 4-grams of the replies' characters": "4-gram of replies",
        "4-grams of both sides, mixed with the question's characters": "4-gram of both sides, and copy",
    }
    default = runs["small"]
    return [
        ("model", "nats per character", "seconds"),
        *((label, f"{row['nats_per_character']:.2f}", f"{row['seconds']:.0f}") for label, row in rows.items()),
        *((label, f"{own['count_models'][name]:.2f}", "") for label, name in of_counts.items()),
        (
            "this project, `--preset none`",
            f"{runs['none']['nats_per_character']:.3f}",
            f"{runs['none']['seconds']:.0f}",
        ),
        (
            "**this project, defaults**; +-: other seeds",
            f"**{default['nats_per_character']:.3f}** +- 0.01",
            f"{default['seconds']:.0f}",
        ),
    ]


def speed() -> list[Row]:
    """Target tokens a second in training of each system, for both architectures."""
    auto = "[what `--precision auto` chooses](../docs/experiments.md#precision-on-cpus)"
    labels = {
        "this project, bfloat16": f"**this project, bfloat16** ({auto})",
        "this project, float32": "this project, float32",
        "PyTorch, bfloat16": "the same model in tuned PyTorch 2.13, bfloat16",
        "PyTorch, float32": "the same model in tuned PyTorch 2.13, float32",
        "OpenNMT-py, float32": "OpenNMT-py 3.5.1, float32; by an earlier version",
    }
    names = {"LSTM": "compare-recurrent", "Transformer": "compare-transformer"}
    headings = ["", *(f"{name}, {what}" for name in names for what in ("tokens/s", "rounds"))]
    rates = [results(name)["target_tokens_per_s"] for name in names.values()]
    rows = []
    for system, label in labels.items():
        cells = [label]
        for of_architecture in rates:
            median = rate(of_architecture[system]["median"])
            cells += [f"**{median}**" if "**" in label else median, rounds(of_architecture[system])]
        rows.append(cells)
    return [headings, *rows]


def serving() -> list[Row]:
    """Replies a second over HTTP of each search."""
    labels = {
        "default": "**the default**: looks replies up, and the model ranks them",
        "greedy": "greedy",
        "sampling": "sampling",
        "beam": "beam search of 5",
        "candidates": "30 candidates and rerank",
    }
    searches = results("serve")["searches"]
    rows = []
    for name, label in labels.items():
        cells, search = [label], searches[f"http, {name}"]
        for clients in ("one", "many"):
            spread = search[f"{clients}_replies_per_s"]
            cells += [rate(spread["median"]), rounds(spread), f"{search[f'{clients}_p99_ms']:,.0f}"]
        rows.append(cells)
    of_clients = [cell for number in (1, 64) for cell in (f"{number} client{'s' * (number > 1)}", "", "p99, ms")]
    headings = ["search", *(cell or f"{of_clients[i - 1]}, rounds" for i, cell in enumerate(of_clients))]
    return [headings, *rows]


def scaling() -> list[Row]:
    """The rate of several towers or processes beside one."""
    towers, large, processes = (results(f"scaling-{name}") for name in ("towers", "large", "processes"))
    two, alone = (processes["processes"][name] for name in ("two", "two without an exchange"))
    speed_ups = {
        f"{row['number']} towers, the same batch ({towers['day']})": row["speed_up"] for row in towers["towers"][1:]
    }
    last = large["towers"][-1]
    return [
        ("on 2 cores", "rate, beside one", "other runs"),
        *((label, f"{speed_up:.2f}", "") for label, speed_up in speed_ups.items()),
        (
            f"{last['number']} towers, 83 million weights, one round ({large['day']})",
            f"{last['speed_up']:.2f}",
            "",
        ),
        (
            f"**2 processes**, each pinned to a core, 256 pairs each ({processes['day']})",
            f"**{two['speed_up']:.2f}**",
            "1.82 to 1.86",
        ),
        (
            "the same without an exchange: the most that this machine allows",
            f"{alone['speed_up']:.2f}",
            "1.90 to 1.98",
        ),
    ]


def rate(value: float) -> str:
    """A rate with its significant digits."""
    return f"{value:,.0f}" if value >= 50 else f"{value:.1f}"


def rounds(spread: dict[str, float]) -> str:
    """The lowest and the highest round."""
    return f"{rate(spread['lowest'])} to {rate(spread['highest'])}"


if __name__ == "__main__":
    BENCHMARKS.write_text(with_tables(BENCHMARKS.read_text(encoding="utf-8")), encoding="utf-8")
    sys.exit(0)
