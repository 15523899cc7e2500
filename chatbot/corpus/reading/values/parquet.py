"""Parquet files, as Hugging Face publishes data sets: records with named columns, or lists of messages.

pyarrow reads them; it is an optional dependency.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chatbot.corpus.reading.display import counted, one_line
from chatbot.corpus.reading.files.compression import allowance
from chatbot.corpus.reading.files.lines import UNDECODABLE
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import NEW, Pair, linked
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.tables.columns import named
from chatbot.corpus.reading.values.conversations import pairs_of
from chatbot.corpus.reading.weights import at_place, weight_column_of
from chatbot.errors import UserError

MAGIC = b"PAR1"
ROWS = 512  # converted to Python's objects at once


def is_parquet(path: Path) -> bool:
    """Return whether the file begins as a Parquet file does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_parquet(path: Path, place: str, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of each row, as those of a JSON object. Holds a few rows in memory.

    Raises UserError when pyarrow is not installed, for a damaged file, and for one without columns of a question and
    its answer or of conversations.
    """
    try:
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise UserError(f"{place}: a Parquet file; run `pip install pyarrow`, which reads it") from None
    try:
        # Buffers bound the memory for large row groups; memory mapping and pre-buffering would not.
        with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            yield from _pairs(file, path.stat().st_size, place, options, report)
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = one_line(str(error), 60)
        raise UserError(f"{place}: a damaged Parquet file ({reason}); download it again") from None


def _pairs(file: Any, size: int, place: str, options: ReadOptions, report: Report) -> Iterator[Pair]:
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    allowance(place, size).spend(sum(group.total_byte_size for group in groups))
    columns, renamed = _columns(file.schema_arrow, options.columns, place)
    own = ReadOptions(weight_column=options.weight_column)  # the columns are renamed
    if options.weight_column is not None:
        names = list(file.schema_arrow.names)
        weights = names[weight_column_of(names, options.weight_column, place)]
        columns, renamed = _with_weights(columns, renamed, weights, options.weight_column)
    before, number = report.read_bytes, 0

    def row_place() -> str:
        return f"{place}, row {number:,}"

    def drop(reason: str) -> None:
        report.drop(reason, row_place())

    for group in range(len(groups)):
        for batch in file.iter_batches(ROWS, [group], columns, use_threads=False):
            for row in batch.select(columns).to_pylist():
                number += 1
                value = dict(zip(renamed, row.values(), strict=True)) if len(renamed) > 1 else row[columns[0]]
                interrupted = False
                with at_place(row_place):
                    for pair in pairs_of(value, own, drop):
                        if UNDECODABLE in pair[0] or UNDECODABLE in pair[1]:
                            drop("pairs with characters that were lost before")
                            interrupted = True
                        else:
                            yield linked(pair, NEW) if interrupted else pair
                            interrupted = False
        report.read_bytes = before + size * (group + 1) // len(groups)
    report.read_bytes = before + size


def _with_weights(columns: list[str], renamed: list[str], weights: str, name: str) -> tuple[list[str], list[str]]:
    """Return the columns and their names with that of the weights, once. name: under which `pairs_of` finds it."""
    others = [(column, new) for column, new in zip(columns, renamed, strict=True) if column != weights]
    return [*(column for column, _ in others), weights], [*(new for _, new in others), name]


def _columns(schema: Any, wanted: Sequence[str], place: str) -> tuple[list[str], list[str]]:
    """Return the names of the columns to read, and the names under which `pairs_of` knows them.

    Without `wanted`: all columns that contain text, if their names tell what they are or if there are only two; or the
    only one, if it contains lists.
    """
    names = list(schema.names)
    places = {name.casefold(): name for name in reversed(names)}
    if wanted:
        numbers = [int(column) - 1 if column.isdecimal() else -1 for column in wanted]
        found = [
            names[number] if 0 <= number < len(names) else places.get(column.casefold())
            for column, number in zip(wanted, numbers, strict=True)
        ]
        if None not in found:
            return [name for name in found if name], ["question", "answer"]
        problem = f"no columns {' and '.join(wanted)}"
    else:
        texts = [name for name in names if _has_text(schema.field(name).type)]
        lists = [name for name in texts if schema.field(name).type.num_fields]
        if named(tuple(texts)) or lists:
            return texts, texts
        if len(texts) == 2:
            return texts, ["question", "answer"]
        problem = f"{counted(len(texts), 'column')} of text, and no name of a question and its answer"
    listed = ", ".join(f"{number} {one_line(name, 20)!r}" for number, name in enumerate(names[:12], start=1))
    raise UserError(f"{place}: {problem}; give --columns and two of: {listed}")


def _has_text(kind: Any) -> bool:
    """Return whether a type of Arrow is text, or a list or an object that contains text."""
    if kind.num_fields:
        return any(_has_text(kind.field(number).type) for number in range(kind.num_fields))
    value = getattr(kind, "value_type", kind)  # of a dictionary of repeated texts
    return str(value) in ("string", "large_string", "string_view")
