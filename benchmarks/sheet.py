"""Writes and evaluates rating sheets, in which a person rates replies without seeing which model wrote them.

Each reply is rated for sensibleness and specificity, as in SSA (Adiwardana et al., 2020).
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
from chatbot.config.evaluation import EVALUATE, HeldOutSettings
from chatbot.corpus.reading.charset import detect_charset
from chatbot.corpus.reading.sources import find_parts
from chatbot.corpus.shards import PAIRS_PER_SHARD
from chatbot.display import pluralize, visible
from chatbot.durable import read_json, write_file, write_json
from chatbot.errors import UserError
from chatbot.evaluation.evaluate import reply
from chatbot.evaluation.held_out import baseline_of, held_out_corpus, load_and_read
from chatbot.evaluation.measures import SEED, samples_of
from chatbot.evaluation.report import turns_before
from chatbot.flags import setting
from chatbot.inference.tensorflow_model import replier_for
from chatbot.memory import let_gpu_memory_grow

# The sources of replies that have a name. Another trained model or a file of replies can also be a source.
SOURCES = PEOPLE, NEAREST, MODEL, BEAM = "people", "nearest", "model", "beam"
BEAM_SEARCH = DecodingSettings(beam_size=5, retrieve=NONE)
# The sheet contains a row for each distinct reply to a message. A separate key file maps row ids to sources.
SHEET = "sheet.csv"
KEY = "key.json"
ID = "id"
SENSIBLE = "sensible"
SPECIFIC = "specific"
COLUMNS = (ID, "message", "reply", SENSIBLE, SPECIFIC)
# Instructions for the rater, which are in the first row of the sheet.
EXPLANATION = (
    "Write 0 or 1 into each cell. Sensible: a person might really write this in answer to the message. Specific: it is "
    "sensible, and would not fit nearly any other message.",
    "每格填 0 或 1。sensible（合理）：真人也可能这样回复这条消息。"
    "specific（具体）：合理，而且不是对几乎任何消息都适用的话。",
)
# Spreadsheets treat a cell that starts with one of these characters as a formula, so a space is inserted before it.
FORMULA = ("=", "+", "-", "@")

# The origin of a source's replies: the folder of a trained model, the lines of a file, or None for one of SOURCES.
Origin = Path | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True)
class SheetBenchmark(HeldOutSettings, Recorded):
    """The flags of `python -m benchmarks sheet`."""

    data: tuple[str, ...] = setting(
        (),
        "files of held-out question-answer pairs, in any common format",
        unset="none; not needed for counting the ratings of a --sheet",
        group="data",
        metavar="FILE",
    )
    sheet: str = setting(
        ...,
        "folder of a blind sheet of replies to rate; the ratings of an existing sheet are counted",
        group="sheet",
        metavar="FOLDER",
    )
    compare: tuple[str, ...] = setting(
        (),
        "sources of the replies: people, nearest (the baseline), model, beam (the model with --beam-size 5 --retrieve "
        "none), another attempt, or a file with one reply per question",
        metavar="SOURCE",
    )
    number: int = setting(70, "number of questions to draw for a new sheet", minimum=1)


def measure(flags: SheetBenchmark) -> dict[str, Any]:
    """Write a new sheet of replies, or count the ratings in an existing sheet."""
    folder = Path(flags.sheet)
    if len(set(flags.compare)) < len(flags.compare):
        raise UserError(f"--compare {' '.join(flags.compare)}: a source is given twice; give each one once")
    if not (folder / SHEET).exists() and not (folder / KEY).exists():
        if not flags.data or not flags.compare:
            raise UserError(
                f"--sheet {folder}: contains no sheet to count; to write one, add --data FILE --compare SOURCE"
            )
        messages, replies = replies_to_rate(flags)
        rows = write_sheet(folder, messages, replies)
        log(
            f"Written: {folder / SHEET}, {pluralize(rows, 'row')}. Fill in 0 or 1, and run this again to count; {KEY} "
            "has the sources."
        )
        return {"sheet": flags.sheet, "messages": len(messages), "rows": rows}
    ratings, unrated = count_ratings(folder, flags.compare)
    if unrated:
        log(f"Note: {pluralize(unrated, 'row')} without two ratings, not counted.")
    return {"sources": ratings, "unrated_rows": unrated}


def replies_to_rate(flags: SheetBenchmark) -> tuple[list[str], dict[str, list[str]]]:
    """Draw messages with a fixed seed, and return them with the replies of each source.

    A message consists of a question and the previous turns of the conversation. Raises UserError if a source or a file
    cannot be used.
    """
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
            return reply(replier_for(trained, BEAM_SEARCH if name == BEAM else search), drawn)
        other = load_trained(origin)
        its_samples = samples_of(held_out_corpus(other, held_out, flags))
        if len(its_samples) != len(samples):
            raise UserError(
                f"--compare {name}: its cleaning leaves {pluralize(len(its_samples), 'pair')} of --data, that of this "
                f"attempt {len(samples):,}; use pairs that no rule drops"
            )
        replier = replier_for(other, with_default_search(flags.decoding, origin))
        return reply(replier, [its_samples[row] for row in rows])

    messages = [" / ".join([*turns_before(sample.ids, trained.vocabulary), sample.question]) for sample in drawn]
    return messages, {name: replies_of(name, origin) for name, origin in origins.items()}


def origin_of(name: str) -> Origin:
    """Return where the replies of a --compare source come from. Raises UserError if the source is unknown."""
    path = Path(name)
    if name in SOURCES:
        return None
    if path.is_file():
        return tuple(file_text(path).removesuffix("\n").split("\n"))
    if not path.is_dir() and not (CHECKPOINTS / name).is_dir():
        raise UserError(
            f"--compare {name}: unknown; give {', '.join(SOURCES)}, the name or folder of an attempt, or a file with "
            "one reply per line"
        )
    return trained_directory(name, "--compare")


def check_lines(name: str, lines: Sequence[str], pairs: int) -> None:
    """Raise UserError if a file of replies does not contain exactly one line per pair."""
    if pairs > PAIRS_PER_SHARD:
        raise UserError(
            f"--compare {name}: replies in a file are for at most {PAIRS_PER_SHARD:,} pairs, and --data has {pairs:,}; "
            "use a part of them, since a sheet has few"
        )
    if len(lines) != pairs:
        raise UserError(
            f"--compare {name}: {pluralize(len(lines), 'line')} for {pluralize(pairs, 'question')}; use a file with "
            "one reply per question of --data, in its order"
        )


def write_sheet(folder: Path, messages: Sequence[str], replies: Mapping[str, Sequence[str]]) -> int:
    """Write a sheet and its key, and return the number of rows. Raises OSError.

    Identical replies of several sources to a message have a single row. The rows of a message are consecutive and in
    random order, with a fixed seed.

    Args:
        folder: The folder to write to.
        messages: The messages.
        replies: One reply per message for each source.
    """
    rows: list[tuple[str, str, list[str]]] = []
    draw = random.Random(SEED)
    for number, message in enumerate(messages):
        sources: dict[str, list[str]] = {}
        for source, texts in replies.items():
            sources.setdefault(visible(texts[number]).strip(), []).append(source)
        rows += [(visible(message), reply, sources[reply]) for reply in draw.sample(sorted(sources), len(sources))]
    # Row ids contain a hash of the sheet. Therefore, a key that belongs to another sheet can be detected.
    prefix = "".join(chr(ord("a") + byte % 26) for byte in hashlib.sha256(repr(rows).encode()).digest()[:6])
    ids = [f"{prefix}{number}" for number in range(1, len(rows) + 1)]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerows([COLUMNS, ("", *EXPLANATION, "", "")])
    for i, (*texts, _) in zip(ids, rows, strict=True):
        writer.writerow([i, *(f" {text}" if text.startswith(FORMULA) else text for text in texts), "", ""])
    write_json(folder / KEY, {"sources": [*replies], "rows": {i: row[2] for i, row in zip(ids, rows, strict=True)}})
    write_file(folder / SHEET, text.getvalue().encode("utf-8-sig"))  # spreadsheets recognise UTF-8 by the BOM
    return len(rows)


def count_ratings(folder: Path, sources: Sequence[str] = ()) -> tuple[dict[str, dict[str, Any]], int]:
    """Count the ratings of a sheet.

    Args:
        folder: The folder of the sheet.
        sources: The expected sources; empty to accept any sources.

    Returns:
        The ratings by source, and the number of rows that are not counted because a rating is missing.

    Raises:
        UserError: If the sheet has different sources, if the key belongs to another sheet, if a rating is invalid, or
            if nothing is rated.
    """
    names, rows = _read_key(folder / KEY)
    if sources and [*sources] != names:
        raise UserError(
            f"--sheet {folder}: contains a sheet of {', '.join(names)}; count it without --compare, or use "
            "another folder"
        )
    ratings = _read_ratings(folder / SHEET, rows)
    if not ratings:
        raise UserError(
            f"{folder / SHEET}: nothing is rated yet; write 0 or 1 into both cells of each reply, save it as CSV under "
            "this name, and run the command again"
        )
    by_source = {name: [ratings[i] for i in ratings if name in rows[i]] for name in names}
    return {name: _summarise(pairs) for name, pairs in by_source.items()}, len(rows) - len(ratings)


def _summarise(pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Summarise the pairs of ratings (sensible, specific) of a source.

    Returns:
        The number of rated replies, the fractions of sensible and of specific replies, the mean of both fractions, and
        the standard error of the mean. A value is None if there are too few replies.
    """
    means = [sum(pair) / 2 for pair in pairs]
    columns = {SENSIBLE: [float(a) for a, _ in pairs], SPECIFIC: [float(b) for _, b in pairs], "mean": means}
    shares = {name: statistics.fmean(column) if pairs else None for name, column in columns.items()}
    error = statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return {"replies": len(pairs), **shares, "standard_error": error}


def _read_key(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Return the sources of a sheet, and the sources of each row by row id. Raises UserError if the key is invalid."""
    try:
        key = read_json(path)
        rows = {str(i): [*map(str, sources)] for i, sources in key["rows"].items()}
        return [*map(str, key["sources"])], rows
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{path}: missing or damaged; restore it, or use another folder for --sheet") from None


def _read_ratings(path: Path, rows: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Return the two ratings of each rated row, by row id. Raises UserError if the sheet or a rating is invalid."""
    try:
        text = file_text(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); restore it, or use another folder") from None
    needed = {ID, SENSIBLE, SPECIFIC}
    first = text.partition("\n")[0]
    try:
        delimiter = next(d for d in ",;\t" if needed <= {*next(csv.reader([first], delimiter=d), [])})
        lines = [*csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)]
    except (StopIteration, csv.Error):
        raise UserError(
            f"{path}: not a table with the columns {', '.join(COLUMNS)}; save it as CSV with them"
        ) from None
    ratings: dict[str, tuple[int, int]] = {}
    for line in lines:
        i, *values = ((line[column] or "").strip() for column in (ID, SENSIBLE, SPECIFIC))
        if not i:
            continue
        if i not in rows:
            raise UserError(f"{path}: row {i!r} is not in {KEY}, which belongs to another sheet; restore the right key")
        for column, value in zip((SENSIBLE, SPECIFIC), values, strict=True):
            if value not in ("", "0", "1"):
                raise UserError(f"{path}: row {i} has {value!r} as {column}; write 0 or 1")
        if values == ["0", "1"]:
            raise UserError(f"{path}: row {i} is specific but not sensible; a specific reply must also be sensible")
        if i in ratings:
            raise UserError(f"{path}: row {i} occurs twice; remove one")
        if all(values):
            ratings[i] = int(values[0]), int(values[1])
    return ratings


def file_text(path: Path) -> str:
    """Read a text file, detecting its charset. Raises OSError."""
    content = path.read_bytes()
    return content.decode(detect_charset(content)[0], "replace").replace("\r\n", "\n").replace("\r", "\n")


BENCHMARK = Benchmark(
    "sheet",
    SheetBenchmark,
    "Write a blind sheet of replies for a person to rate, and count the ratings.",
    measure,
    without=EVALUATE.without,
)
