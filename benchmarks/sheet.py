"""A blind sheet: replies of several sources to the same messages, rated by a person who does not see the sources.

Each reply is sensible or not, and specific or not, as in SSA (Adiwardana et al., 2020).
"""

import csv
import dataclasses
import hashlib
import io
import math
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Benchmark, Recorded, log
from chatbot.attempts.files import trained_directory
from chatbot.attempts.settings import with_default_search
from chatbot.attempts.trained import load_trained
from chatbot.config.attempts import CHECKPOINTS
from chatbot.config.corpus import NONE
from chatbot.config.decoding import DecodingSettings
from chatbot.config.evaluation import DATA, EVALUATE, HeldOutSettings
from chatbot.corpus.reading.charset import detect_charset
from chatbot.corpus.reading.sources import find_parts
from chatbot.corpus.shards import PAIRS_PER_SHARD
from chatbot.display import counted, visible
from chatbot.durable import read_json, write_file, write_json
from chatbot.errors import UserError
from chatbot.evaluation.evaluate import reply
from chatbot.evaluation.held_out import baseline_of, held_out_corpus, load_and_read
from chatbot.evaluation.measures import SEED, samples_of
from chatbot.evaluation.report import turns_before
from chatbot.flags import setting
from chatbot.inference.tensorflow_model import replier_of
from chatbot.memory import let_gpu_memory_grow

# The sources of replies on a sheet, beside other attempts and files.
SOURCES = PEOPLE, NEAREST, MODEL, BEAM = "people", "nearest", "model", "beam"
BEAM_SEARCH = DecodingSettings(beam_size=5, retrieve=NONE)
# The sheet has a row for each different reply to a message; the key has the sources of each row, by its id.
SHEET = "sheet.csv"
KEY = "key.json"
ID = "id"
SENSIBLE = "sensible"
SPECIFIC = "specific"
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


@dataclasses.dataclass(frozen=True)
class SheetBenchmark(HeldOutSettings, Recorded):
    """The flags of python -m benchmarks sheet."""

    data: tuple[str, ...] = setting(
        (),
        "held-out question-answer pairs, in any usual format",
        unset="none, only to count a --sheet",
        group=DATA,
        metavar="FILE",
    )
    sheet: str = setting(
        ...,
        "write a sheet of replies for a person to rate, who does not see their sources; once it is rated, count it",
        group="sheet",
        metavar="FOLDER",
    )
    compare: tuple[str, ...] = setting(
        (),
        "sources of replies: people (the answers of --data), nearest (the baseline), model (this attempt), beam (this "
        "attempt with --beam-size 5 --retrieve none), another attempt, or a file with one reply for each question",
        metavar="SOURCE",
    )
    number: int = setting(70, "questions of a new sheet, drawn at random", least=1)


def measure(flags: SheetBenchmark) -> dict[str, Any]:
    """Write a sheet of replies, or print the ratings of the one that is there."""
    folder = Path(flags.sheet)
    if len(set(flags.compare)) < len(flags.compare):
        raise UserError(f"--compare {' '.join(flags.compare)}: a source is given twice; give each of them once")
    if not (folder / SHEET).exists() and not (folder / KEY).exists():
        if not flags.data or not flags.compare:
            raise UserError(f"--sheet {folder}: has no sheet to count; to write one, add --data FILE --compare SOURCE")
        messages, replies = replies_to_rate(flags)
        rows = write_sheet(folder, messages, replies)
        log(
            f"Written: {folder / SHEET}, {counted(rows, 'row')}. Fill in 0 or 1, and run this again to count; {KEY} "
            "says whose replies they are."
        )
        return {"sheet": flags.sheet, "messages": len(messages), "rows": rows}
    ratings, unrated = count_ratings(folder, flags.compare)
    if unrated:
        log(f"Note: {counted(unrated, 'row')} without two ratings, not counted.")
    return {"sources": ratings, "unrated_rows": unrated}


def replies_to_rate(flags: SheetBenchmark) -> tuple[list[str], dict[str, list[str]]]:
    """Return messages drawn by a seed, with the turns before them, and the replies by source. Raises UserError."""
    directory = trained_directory(flags.attempt)
    search = with_default_search(flags.decoding, directory)
    origins = {name: origin_of(name) for name in flags.compare}
    held_out = find_parts(flags.data).measured
    baseline_files = find_parts(flags.baseline_data).training if flags.baseline_data else None
    Path(flags.sheet).mkdir(parents=True, exist_ok=True)
    let_gpu_memory_grow()
    trained, corpus, _ = load_and_read(directory, held_out, flags)
    for name, origin in origins.items():
        if isinstance(origin, tuple):
            check_lines(name, origin, corpus.pairs)
    samples = samples_of(corpus)
    rows = random.Random(SEED).sample(range(len(samples)), min(flags.number, len(samples)))
    drawn = [samples[row] for row in rows]

    def replies_of(name: str, origin: Origin) -> list[str]:
        if isinstance(origin, tuple):
            return [origin[row] for row in rows]
        if name == PEOPLE:
            return [sample.answer for sample in drawn]
        if name == NEAREST:
            nearest = baseline_of(trained, baseline_files, flags)
            return [nearest.reply(sample.question) for sample in drawn]
        if origin is None:
            return reply(replier_of(trained, BEAM_SEARCH if name == BEAM else search), drawn)
        other = load_trained(origin)
        its_samples = samples_of(held_out_corpus(other, held_out, flags))
        if len(its_samples) != len(samples):
            raise UserError(
                f"--compare {name}: its cleaning leaves {counted(len(its_samples), 'pair')} of --data, that of this "
                f"attempt {len(samples):,}; give pairs that no rule leaves empty"
            )
        replier = replier_of(other, with_default_search(flags.decoding, origin))
        return reply(replier, [its_samples[row] for row in rows])

    messages = [" / ".join([*turns_before(sample.ids, trained.vocabulary), sample.question]) for sample in drawn]
    return messages, {name: replies_of(name, origin) for name, origin in origins.items()}


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


def check_lines(name: str, lines: Sequence[str], pairs: int) -> None:
    """Raise UserError for a file of replies that has not one line for each pair, in the order of the pairs."""
    if pairs > PAIRS_PER_SHARD:
        raise UserError(
            f"--compare {name}: replies in a file are for at most {PAIRS_PER_SHARD:,} pairs, and --data has {pairs:,}; "
            "give a part of them, as a sheet has few"
        )
    if len(lines) != pairs:
        raise UserError(
            f"--compare {name}: {counted(len(lines), 'line')} for {counted(pairs, 'question')}; give a file with one "
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
    write_json(folder / KEY, {"sources": [*replies], "rows": {i: row[2] for i, row in zip(ids, rows, strict=True)}})
    write_file(folder / SHEET, text.getvalue().encode("utf-8-sig"))  # spreadsheets know UTF-8 by the mark
    return len(rows)


def count_ratings(folder: Path, sources: Sequence[str] = ()) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the ratings by source, and the number of rows that are not rated, which do not count.

    sources: those that the sheet must have; () for any. Raises UserError for a sheet of other sources, a key of another
    sheet, values that are no ratings, and a sheet without any.
    """
    names, rows = _read_key(folder / KEY)
    if sources and [*sources] != names:
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


def _ratings_of(pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the number of replies of a source, the shares of sensible and specific ones, their mean and its error.

    The error is one standard error. None: too few replies. pairs: sensible and specific of each reply.
    """
    means = [sum(pair) / 2 for pair in pairs]
    columns = {SENSIBLE: [float(a) for a, _ in pairs], SPECIFIC: [float(b) for _, b in pairs], "mean": means}
    shares = {name: statistics.fmean(column) if pairs else None for name, column in columns.items()}
    error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return {"replies": len(pairs), **shares, "standard_error": error}


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
    needed = {ID, SENSIBLE, SPECIFIC}
    first = text.partition("\n")[0]
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


sheet_benchmark = Benchmark(
    "sheet",
    SheetBenchmark,
    "Write a blind sheet of replies for a person to rate, and count it once it is rated.",
    measure,
    without=EVALUATE.without,
)
