"""Columnar files: Parquet, Arrow and Feather, and so the saved folders of Hugging Face's `datasets`.

Their rows are records with named columns, lists of messages, or messages. pyarrow reads them; it is an optional
dependency.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chatbot.corpus.reading.conversation import Pair, without_lost
from chatbot.corpus.reading.display import counted, listing, numbered, one_line
from chatbot.corpus.reading.formats.columns import named
from chatbot.corpus.reading.formats.fields import Ahead, Walk
from chatbot.corpus.reading.formats.json_files import are_messages, pairs_of_rows
from chatbot.corpus.reading.open.compression import Allowance, allowance
from chatbot.corpus.reading.open.file_kinds import ARROW, ARROW_STREAM, PARQUET
from chatbot.corpus.reading.open.text_file import UNDECODABLE
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

ROWS = 512  # converted to Python's objects at once
KINDS = {PARQUET: "parquet", ARROW: "arrow", ARROW_STREAM: "arrow"}  # a Feather file is an Arrow file


def columnar_kind(path: Path) -> str:
    """Return the format of a columnar file, "" for any other file."""
    with path.open("rb") as file:
        head = file.read(8)
    return next((kind for magic, kind in KINDS.items() if head.startswith(magic)), "")


def read_columnar(path: Path, kind: str, place: str, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of each row, as those of a JSON object. Holds a few rows in memory.

    Raises UserError when pyarrow is not installed, for a damaged file, and for one without columns of a question and
    its answer or of conversations.
    """
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError:
        title = {"parquet": "a Parquet file", "arrow": "an Arrow file"}[kind]
        raise UserError(f"{place}: {title}; run `pip install pyarrow`, which reads it") from None
    size = path.stat().st_size
    allowed = allowance(place, size)
    try:
        if kind == "parquet":
            # Buffers bound the memory for large row groups; memory mapping and pre-buffering would not.
            with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
                batches = _parquet_batches(file, allowed)
                yield from _pairs(file.schema_arrow, batches, size, place, options, report)
        else:
            with pyarrow.OSFile(str(path)) as stream:
                schema, batches = _arrow_batches(stream, size, allowed)
                yield from _pairs(schema, batches, size, place, options, report)
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = one_line(str(error), 60)
        raise UserError(f"{place}: a damaged {kind.title()} file ({reason}); download it again") from None


# From the names of columns to batches of at most ROWS rows, each with the share of the file that was read before it.
Batches = Callable[[Sequence[str]], Iterator[tuple[Any, float]]]


def _parquet_batches(file: Any, allowed: Allowance) -> Batches:
    groups = file.metadata.num_row_groups
    allowed.spend(sum(file.metadata.row_group(number).total_byte_size for number in range(groups)))

    def batches(columns: Sequence[str]) -> Iterator[tuple[Any, float]]:
        for group in range(groups):
            for batch in file.iter_batches(ROWS, [group], columns, use_threads=False):
                yield batch, group / groups

    return batches


def _arrow_batches(stream: Any, size: int, allowed: Allowance) -> tuple[Any, Batches]:
    """Return the schema and the batches of an Arrow file, or of a stream as `datasets` saves it."""
    import pyarrow.ipc

    is_file = stream.read(len(ARROW)) == ARROW
    stream.seek(0)
    reader = pyarrow.ipc.open_file(stream) if is_file else pyarrow.ipc.open_stream(stream)

    def batches(columns: Sequence[str]) -> Iterator[tuple[Any, float]]:
        share = 0.0
        for batch in map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader:
            allowed.spend(batch.nbytes)
            batch.validate(full=True)  # a damaged offset would end the process
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS).select(columns), share
            share = min(1.0, stream.tell() / size)

    return reader.schema, batches


def _pairs(
    schema: Any, batches: Batches, size: int, place: str, options: ReadOptions, report: Report
) -> Iterator[Pair]:
    before = report.read_bytes
    columns, renamed = _columns(schema, options.columns, place)

    def rows() -> Iterator[tuple[int, int, object]]:
        number = 0
        for batch, share in batches(columns):
            report.read_bytes = before + int(size * share)
            for row in batch.select(columns).to_pylist():
                number += 1
                value = dict(zip(renamed, row.values(), strict=True)) if len(renamed) > 1 else row[columns[0]]
                yield number, batch.nbytes // max(1, batch.num_rows), value

    values = Ahead(rows())
    walk = Walk(ReadOptions(me=options.me), report, place, lambda: f"{place}, row {values.number:,}")
    pairs = walk.checked(pairs_of_rows(values, walk))
    yield from without_lost(pairs, UNDECODABLE, lambda: walk.drop("pairs with characters that were lost before"))
    report.read_bytes = before + size


def _columns(schema: Any, chosen: Sequence[str], place: str) -> tuple[list[str], list[str]]:
    """Return the names of the columns to read, and the names under which `pairs_of` knows them.

    Without `chosen`: all columns that contain text, if their names tell what they are or if there are only two; or the
    only one, if it contains lists.
    """
    names = list(schema.names)
    if chosen:
        by_number = all(column.isdecimal() for column in chosen)
        places = [int(column) - 1 for column in chosen] if by_number else named(tuple(names), tuple(chosen))
        if places and max(places) < len(names):
            return [names[place] for place in places], ["question", "answer"]
        problem = f"no columns {' and '.join(chosen)}"
    else:
        texts = [name for name in names if _has_text(schema.field(name).type)]
        lists = [name for name in texts if schema.field(name).type.num_fields]
        if named(tuple(texts)) or lists:
            return texts, texts
        plain = [name for name in names if not schema.field(name).type.num_fields]
        example = {name: name for name in plain}
        if are_messages([example, example]):
            return plain, plain
        if len(texts) == 2:
            return texts, ["question", "answer"]
        problem = f"{counted(len(texts), 'column')} of text, and no name of a question and its answer"
    raise UserError(listing(f"{place}: {problem}; give --columns and two of: ", numbered(names)))


def _has_text(kind: Any) -> bool:
    """Return whether a type of Arrow is text, or a list or an object that contains text."""
    if kind.num_fields:
        return any(_has_text(kind.field(number).type) for number in range(kind.num_fields))
    value = getattr(kind, "value_type", kind)  # of a dictionary of repeated texts
    return str(value) in ("string", "large_string", "string_view")
