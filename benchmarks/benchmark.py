"""The command-line interface of a benchmark: flags, Markdown tables, and a JSON object on the last line."""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chatbot.command_line import CommandLine
from chatbot.errors import UserError
from chatbot.flags import Flags, setting
from chatbot.training.devices.gpus import find_gpus
from chatbot.training.devices.towers import cpu_info

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
NOT_RECORDED = "not recorded"


@dataclasses.dataclass(frozen=True)
class Recorded(Flags):
    """The flags that all benchmarks have in common."""

    record: str | None = setting(
        None, "also write the results to benchmarks/results/NAME.json", group="results", metavar="NAME"
    )


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """The command `python -m benchmarks NAME`.

    Attributes:
        name: The name of the benchmark.
        flags: The class of its flags.
        about: The first line of its help text.
        measure: A function that returns the results. Its argument is an object of the class `flags`. If `trains` is
            set, it also receives a list of arguments for train.py. If the results contain a true value for "failed",
            the exit code is 1.
        trains: Whether arguments for train.py are accepted after `--`.
        without: Names of flags that the command does not accept, separated by spaces.
    """

    name: str
    flags: type[Recorded]
    about: str
    measure: Callable[..., dict[str, Any]]
    trains: bool = False
    without: str = ""

    def __call__(self, arguments: Sequence[str]) -> int:
        """Run the benchmark and print tables, followed by a JSON object with results, commit and machine."""
        end = arguments.index("--") if self.trains and "--" in arguments else len(arguments)
        line = CommandLine(self.flags, f"benchmarks {self.name}", about=self.about, without=self.without)
        flags: Any = line.parse(arguments[:end])
        training = [*arguments[end + 1 :]]
        results = round_floats(self.measure(flags, *([training] if self.trains else [])))
        context = {"benchmark": self.name, "flags": {**dataclasses.asdict(flags), "training": training}}
        context |= {"commit": commit(), "machine": machine(), "day": f"{datetime.date.today()}"}
        print(*tables({"machine": context["machine"], **results}), sep="\n")
        text = json.dumps({**context, **results}, ensure_ascii=False)
        if flags.record:
            write_record(flags.record, text)
        print(text, flush=True)
        return int(bool(results.get("failed")))


def write_record(name: str, text: str) -> None:
    """Write a JSON object, indented, to a file with this name in benchmarks/results/."""
    if Path(name).name != name:
        raise UserError(f"--record {name}: must be a file name without a folder")
    (RESULTS / f"{name}.json").write_text(json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n", "utf-8")


def log(text: str) -> None:
    """Print a progress message to standard error."""
    print(text, file=sys.stderr, flush=True)


def commit() -> str:
    """Return the commit of this code, with the suffix "-dirty" if there are uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return NOT_RECORDED


def machine() -> dict[str, Any]:
    """Return the properties of this machine that affect speed, but no host name or user name."""
    gpus = [f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB" for gpu in find_gpus()]
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    packages = ("tensorflow", "keras", "nvidia-cudnn-cu12")
    return {
        "processor": cpu_info("model name") or NOT_RECORDED,
        "cores": len(os.sched_getaffinity(0)),
        "gpus": gpus,
        "packages": {name: installed[name] for name in packages if name in installed},
        "python": sys.version.split()[0],
    }


def round_floats(value: Any) -> Any:
    """Round every float to six significant digits, including floats in nested lists and objects."""
    if isinstance(value, Mapping):
        return {name: round_floats(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def tables(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield a Markdown table for each list or object of objects, and a single line for any other value."""
    for name, value in results.items():
        rows = value if isinstance(value, list) else []
        if isinstance(value, Mapping) and value and all(isinstance(row, Mapping) for row in value.values()):
            rows = [{name: row_name, **row} for row_name, row in value.items()]
        if rows and all(isinstance(row, Mapping) for row in rows):
            headings = list(dict.fromkeys(heading for row in rows for heading in row))
            yield from ("", f"| {' | '.join(headings)} |", "|---" * len(headings) + "|")
            yield from (f"| {' | '.join(cell(row.get(heading)) for heading in headings)} |" for row in rows)
            yield ""
        else:
            yield f"- {name}: {cell(value)}"


def cell(value: Any) -> str:
    """Format a value for a table."""
    if isinstance(value, Mapping):
        if value.keys() == {"median", "lowest", "highest"}:
            return "{} ({} to {})".format(*(cell(value[name]) for name in ("median", "lowest", "highest")))
        return ", ".join(f"{name} {cell(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else f"{value:,}" if type(value) is int else str(value)
