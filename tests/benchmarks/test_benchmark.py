"""What all benchmarks print and record, and the document that is made of it."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from benchmarks import benchmark as module
from benchmarks.benchmark import RESULTS, Benchmark, Recorded, commit, machine, tables
from chatbot.errors import UserError
from tests.commands import ROOT


def measured(flags: Recorded, training: list[str]) -> dict[str, Any]:
    return {"rates": [1 / 3, (2 / 3,)], "training": training, "failed": "fail" in training}


EXAMPLE = Benchmark("example", Recorded, "An example.", measured, trains=True)


def test_last_line_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert EXAMPLE(["--", "--steps", "5"]) == 0
    assert EXAMPLE(["--record", "mine", "--", "fail"]) == 1
    first, last = (json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{"))
    (file,) = tmp_path.iterdir()
    assert (file.name, json.loads(file.read_text(encoding="utf-8"))) == ("mine.json", last)
    assert (first["rates"], first["training"]) == ([0.333333, [0.666667]], ["--steps", "5"])
    assert (first["benchmark"], first["commit"], first["machine"]) == ("example", commit(), machine())
    with pytest.raises(UserError, match=r"--record \.\./mine: must be a file name without a folder"):
        EXAMPLE(["--record", "../mine"])


def test_machine_has_no_names_of_hosts_or_folders() -> None:
    assert machine().keys() == {"processor", "cores", "gpus", "packages", "python"}
    assert machine()["packages"]["tensorflow"].startswith("2.")


def test_results_are_shown_as_tables() -> None:
    spread = {"median": 4696.4, "lowest": 4608.0, "highest": 4789.0}
    rates = {"ours": {"rate": spread, "pairs": 2000}, "theirs": {"rate": None}}
    lines = [*tables({"rates": rates, "rows": [{"a": 1}, {"b": [0.12345, True]}], "step": {"x": 3}})]
    assert [line for line in lines if line] == [
        "| rates | rate | pairs |",
        "|---|---|---|",
        "| ours | 4,696 (4,608 to 4,789) | 2,000 |",
        "| theirs |  |  |",
        "| a | b |",
        "|---|---|",
        "| 1 |  |",
        "|  | 0.1235, True |",
        "- step: x 3",
    ]


def test_tables_of_the_document_match_the_recorded_results() -> None:
    with_tables = runpy.run_path(str(ROOT / "docs/pictures/benchmark_tables.py"))["with_tables"]
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert with_tables(text) == text, "run python docs/pictures/benchmark_tables.py"
    assert with_tables(text.replace("**5,728**", "**5,729**")) == text
    with pytest.raises(ValueError, match="no table, or several, with the headings"):
        with_tables("")
    of_machine = machine().keys()
    for file in RESULTS.glob("*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        assert record.keys() >= {"benchmark", "flags", "commit", "machine", "day"}, file
        assert record["machine"].keys() == of_machine, file
