"""A benchmark as a command: its flags, tables on standard output, and one JSON object on the last line."""

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

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
NOT_RECORDED = "not recorded"


@dataclasses.dataclass(frozen=True)
class Recorded(Flags):
    """The flags of every benchmark."""

    record: str | None = setting(
        None, "also write what is printed to benchmarks/results/NAME.json", group="results", metavar="NAME"
    )


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What `python -m benchmarks NAME` runs.

    measure: from the flags, and the words after `--`, to the results. A true "failed" among them makes the exit code 1.
    """

    name: str
    flags: type[Recorded]
    about: str
    measure: Callable[..., dict[str, Any]]
    trains: bool = False  # whether words after `--`, flags of train.py, may follow
    without: str = ""  # the names of the settings that it does not use, between spaces

    def __call__(self, arguments: Sequence[str]) -> int:
        """Measure, print tables, and as the last line one JSON object: what was measured, with which code and where."""
        end = arguments.index("--") if self.trains and "--" in arguments else len(arguments)
        line = CommandLine(self.flags, f"benchmarks {self.name}", self.about, without=self.without)
        flags: Any = line.parse(arguments[:end])
        training = [*arguments[end + 1 :]]
        results = rounded(self.measure(flags, *([training] if self.trains else [])))
        context = {"benchmark": self.name, "flags": {**dataclasses.asdict(flags), "training": training}}
        context |= {"commit": commit(), "machine": machine(), "day": f"{datetime.date.today()}"}
        print(*shown({"machine": context["machine"], **results}), sep="\n")
        text = json.dumps({**context, **results}, ensure_ascii=False)
        if flags.record:
            write_record(flags.record, text)
        print(text, flush=True)
        return int(bool(results.get("failed")))


def write_record(name: str, text: str) -> None:
    """Write a JSON object to the file of results with this name, indented."""
    if Path(name).name != name:
        raise UserError(f"--record {name}: must be the name of a file without a folder")
    (RESULTS / f"{name}.json").write_text(json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n", "utf-8")


def log(text: str) -> None:
    """Print progress."""
    print(text, file=sys.stderr, flush=True)


def commit() -> str:
    """Return the commit of this code, with "-dirty" after it if files of it are changed."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return NOT_RECORDED


def machine() -> dict[str, Any]:
    """Return what the speed depends on, without the names of hosts and users."""
    cpu = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    gpus = [f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB" for gpu in find_gpus()]
    installed = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    packages = ("tensorflow", "keras", "nvidia-cudnn-cu12")
    return {
        "processor": (cpu or [NOT_RECORDED])[0],
        "cores": len(os.sched_getaffinity(0)),
        "gpus": gpus,
        "packages": {name: installed[name] for name in packages if name in installed},
        "python": sys.version.split()[0],
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def rounded(value: Any) -> Any:
    """Round every float to six significant digits, also in nested lists and objects."""
    if isinstance(value, Mapping):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def shown(results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a table in Markdown for each list or object of objects, and a line for any other value."""
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
    """Return a value for readers."""
    if isinstance(value, Mapping):
        if value.keys() == {"median", "lowest", "highest"}:
            return "{} ({} to {})".format(*(cell(value[name]) for name in ("median", "lowest", "highest")))
        return ", ".join(f"{name} {cell(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else f"{value:,}" if type(value) is int else str(value)
