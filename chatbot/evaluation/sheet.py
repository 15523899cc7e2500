"""A blind sheet: replies of several sources to the same messages, rated by a person who does not see the sources.

Each reply is sensible or not, and specific or not, as in SSA (Adiwardana et al., 2020). It needs no TensorFlow.
"""

import csv
import hashlib
import io
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from chatbot.config.attempts import CHECKPOINTS, trained_directory
from chatbot.config.evaluation import SOURCES
from chatbot.corpus.reading.charset import detect_charset
from chatbot.corpus.shards import PAIRS_PER_SHARD
from chatbot.display import aligned, counted, visible
from chatbot.durable import read_json, write_file, write_json
from chatbot.errors import UserError
from chatbot.evaluation.measures import SEED

# The sheet has a row for each different reply to a message; the key has the sources of each row, by its id.
SHEET, KEY = "sheet.csv", "key.json"
ID, SENSIBLE, SPECIFIC = "id", "sensible", "specific"
COLUMNS = (ID, "message", "reply", SENSIBLE, SPECIFIC)
# A row without an id, for the person who rates.
EXPLANATION = (
    "Write 0 or 1 into each cell. Sensible: a person might really write this in answer to the message. Specific: it is "
    "sensible, and would not fit nearly any other message.",
    "每格填 0 或 1。sensible（合理）：真人也可能这样回复这条消息。"
    "specific（具体）：合理，而且不是对几乎任何消息都适用的话。",
)
# A cell that begins with one of these is computed by a spreadsheet, unless a space is before it.
FORMULA = ("=", "+", "-", "@")

# Where the replies of a source are from: the folder of an attempt, the lines of a file, or None for one of SOURCES.
Origin = Path | tuple[str, ...] | None


class Ratings(NamedTuple):
    """The ratings of a source: shares of its replies, None without a reply, and one standard error of their mean."""

    replies: int
    sensible: float | None
    specific: float | None
    mean: float | None
    standard_error: float | None  # None with fewer than two replies


def has_sheet(folder: Path) -> bool:
    """Return whether a folder has a sheet, which is then counted and not replaced."""
    return (folder / SHEET).exists() or (folder / KEY).exists()


def origin_of(name: str) -> Origin:
    """Return where the replies of a source of --compare are from. Raises UserError for an unknown one, and OSError."""
    path = Path(name)
    if name in SOURCES:
        return None
    if path.is_file():
        return tuple(file_text(path).removesuffix("\n").split("\n"))
    if not path.is_dir() and not (CHECKPOINTS / name).is_dir():
        raise UserError(
            f"--compare {name}: unknown; give {', '.join(SOURCES)}, the name or folder of an attempt, or a file with "
            "one reply on each line"
        )
    return trained_directory(name, "--compare")


def check_origin(name: str, origin: Origin, pairs: int) -> None:
    """Raise UserError for a file of replies that has not one line for each pair, in the order of the pairs."""
    if not isinstance(origin, tuple):
        return
    if pairs > PAIRS_PER_SHARD:
        raise UserError(
            f"--compare {name}: replies in a file are for at most {PAIRS_PER_SHARD:,} pairs, and --data has {pairs:,}; "
            "give a part of them, as a sheet has few"
        )
    if len(origin) != pairs:
        raise UserError(
            f"--compare {name}: {counted(len(origin), 'line')} for {counted(pairs, 'question')}; give a file with one "
            "reply for each question of --data, in its order"
        )


def write_sheet(folder: Path, messages: Sequence[str], replies: Mapping[str, Sequence[str]]) -> int:
    """Write the sheet and its key, and return the number of rows.

    The rows of a message follow one another in an order drawn by a seed. Equal replies to it have one row.

    replies: by source, one for each message. Raises OSError.
    """
    rows: list[tuple[str, str, list[str]]] = []
    draw = random.Random(SEED)
    for number, message in enumerate(messages):
        sources: dict[str, list[str]] = {}
        for source, of_source in replies.items():
            sources.setdefault(visible(of_source[number]).strip(), []).append(source)
        rows += [(visible(message), reply, sources[reply]) for reply in draw.sample(sorted(sources), len(sources))]
    # No other sheet has these ids, so that its key is not taken for the key of this one.
    prefix = "".join(chr(ord("a") + byte % 26) for byte in hashlib.sha256(repr(rows).encode()).digest()[:6])
    ids = [f"{prefix}{number}" for number in range(1, len(rows) + 1)]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([COLUMNS, ("", *EXPLANATION, "", "")])
    for i, (*texts, _) in zip(ids, rows, strict=True):
        writer.writerow([i, *(f" {text}" if text.startswith(FORMULA) else text for text in texts), "", ""])
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / KEY, {"sources": [*replies], "rows": {i: row[2] for i, row in zip(ids, rows, strict=True)}})
    write_file(folder / SHEET, text.getvalue().encode("utf-8-sig"))  # spreadsheets know UTF-8 by the mark
    return len(rows)


def count_ratings(folder: Path, sources: Sequence[str] = ()) -> tuple[dict[str, Ratings], int]:
    """Return the ratings by source, and the number of rows that are not rated, which do not count.

    sources: those that the sheet must have; () for any. Raises UserError for a sheet of other sources, a key of another
    sheet, values that are no ratings, and a sheet without any.
    """
    names, rows = _read_key(folder / KEY)
    if sources and [*dict.fromkeys(sources)] != names:
        raise UserError(
            f"--sheet {folder}: has a sheet of {', '.join(names)}; count it without --compare, or give another folder"
        )
    ratings = _read_ratings(folder / SHEET, rows)
    if not ratings:
        raise UserError(
            f"{folder / SHEET}: nothing is rated yet; write 0 or 1 into both cells of each reply, save it as CSV under "
            "this name, and run the command again"
        )
    by_source = {name: [ratings[i] for i in ratings if name in rows[i]] for name in names}
    return {name: _ratings_of(of_source) for name, of_source in by_source.items()}, len(rows) - len(ratings)


def _ratings_of(pairs: Sequence[tuple[int, int]]) -> Ratings:
    """Return the ratings of a source. pairs: sensible and specific of each reply."""
    if not pairs:
        return Ratings(0, None, None, None, None)
    sensible, specific = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    means = [sum(pair) / 2 for pair in pairs]
    error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return Ratings(len(pairs), sensible, specific, statistics.fmean(means), error)


def _read_key(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Return the sources of a sheet, and those of each row by its id. Raises UserError."""
    try:
        key = read_json(path)
        rows = {str(i): [*map(str, sources)] for i, sources in key["rows"].items()}
        return [*map(str, key["sources"])], rows
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{path}: missing or damaged; restore it, or give another folder to --sheet") from None


def _read_ratings(path: Path, rows: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Return sensible and specific of each row that is rated, by id. rows: those of the key. Raises UserError."""
    try:
        text = file_text(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); restore it, or give another folder") from None
    needed, first = {ID, SENSIBLE, SPECIFIC}, text.partition("\n")[0]
    try:
        delimiter = next(d for d in ",;\t" if needed <= {*next(csv.reader([first], delimiter=d), [])})
        lines = [*csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)]
    except (StopIteration, csv.Error):
        raise UserError(f"{path}: no table with the columns {', '.join(COLUMNS)}; save it as CSV with them") from None
    ratings: dict[str, tuple[int, int]] = {}
    for line in lines:
        i, *values = ((line[column] or "").strip() for column in (ID, SENSIBLE, SPECIFIC))
        if not i:
            continue
        if i not in rows:
            raise UserError(f"{path}: the row {i!r} is not in {KEY}, which is of another sheet; restore the right one")
        for column, value in zip((SENSIBLE, SPECIFIC), values, strict=True):
            if value not in ("", "0", "1"):
                raise UserError(f"{path}: the row {i} has {value!r} as {column}; write 0 or 1")
        if values == ["0", "1"]:
            raise UserError(f"{path}: the row {i} is specific, but not sensible; a specific reply is sensible, too")
        if i in ratings:
            raise UserError(f"{path}: the row {i} occurs twice; remove one")
        if all(values):
            ratings[i] = int(values[0]), int(values[1])
    return ratings


def file_text(path: Path) -> str:
    """Return the text of a file, whose charset is detected. Raises OSError."""
    content = path.read_bytes()
    return content.decode(detect_charset(content)[0], "replace").replace("\r\n", "\n").replace("\r", "\n")


def table_of(ratings: Mapping[str, Ratings]) -> list[str]:
    """Return the lines of an aligned table of ratings."""
    rows = [["source", "replies", SENSIBLE, SPECIFIC, "mean of both"]]
    for name, of_source in ratings.items():
        sensible, specific, mean = ("-" if x is None else f"{x:.1%}" for x in of_source[1:4])
        error = "" if of_source.standard_error is None else f" ± {of_source.standard_error:.1%}"
        rows.append([name, f"{of_source.replies:,}", sensible, specific, mean + error])
    return aligned(rows, [True, *[False] * 4])
