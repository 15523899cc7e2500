"""metrics.csv: one row a logged step, for spreadsheets."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chatbot.config.training import Settings
from chatbot.durable import write_file
from chatbot.evaluation.samples import Sample
from chatbot.training.reporting.exported_run import flat_values
from chatbot.training.reporting.metrics_file import append_line
from chatbot.training.validator import Validation

STEP = "step"


class Csv:
    """Appends rows to metrics.csv in the attempt.

    A column never moves. Values that occur for the first time, such as those of the first validation, get columns at
    the right, for which the file is written again.
    """

    tries_again = True

    def __init__(self, settings: Settings, towers: Sequence[str], step: int) -> None:
        """towers: their names. step: that of the checkpoint; later rows, which a killed run leaves, are removed."""
        self._path, self._towers = settings.run.directory / "metrics.csv", towers
        rows = [row for row in _rows(self._path) if _step(row) <= step]
        self._columns = list(dict.fromkeys([STEP, *(name for row in rows for name in row)]))
        if self._path.exists():
            self._write(rows)

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step. Raises OSError; the file then ends with a complete row."""
        row = {STEP: record[STEP], **flat_values(record, self._towers)}
        new = [name for name in row if name not in self._columns]
        if new or not self._path.exists():
            self._columns += new
            self._write([*_rows(self._path), row])
        else:
            append_line(self._path, _lines(self._columns, [row]))

    def validation(self, validation: Validation, samples: Sequence[Sample], step: int) -> None:
        """Do nothing: the values are in the record of the step, and texts are not written."""

    def warning(self, text: str, step: int) -> None:
        """Do nothing: texts are not written."""

    def close(self, stopped: str) -> None:
        """Do nothing: the file is not open between two records."""

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        write_file(self._path, _lines(self._columns, [dict(zip(self._columns, self._columns, strict=True)), *rows]))


def _rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file by the names of the columns, [] if there is none. Damaged rows are left out."""
    if not path.exists():
        return []
    whole_lines = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")[0]
    rows = csv.DictReader(io.StringIO(whole_lines, newline=""), restkey="")
    return [row for row in rows if "" not in row and None not in row.values() and _step(row) >= 0]


def _step(row: Mapping[str, str]) -> int:
    text = row.get(STEP, "")
    return int(text) if text.isdecimal() else -1


def _lines(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> bytes:
    text = io.StringIO()
    csv.DictWriter(text, columns, restval="", lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
