"""Columnar files: Parquet, Arrow and Feather, and so the saved folders of Hugging Face's `datasets`.

Their rows are records with named columns, lists of messages, or messages. pyarrow reads them; it is an optional
dependency.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chatbot.corpus.reading.conversation import Pair, without_lost
from chatbot.corpus.reading.display import counted, listing, numbered, one_line
from chatbot.corpus.reading.formats.columns import named
from chatbot.corpus.reading.formats.fields import Ahead, Walk
from chatbot.corpus.reading.formats.json_files import are_messages, pairs_of_rows
from chatbot.corpus.reading.open.compression import allowance
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
    try:
        if kind == "parquet":
            # Buffers bound the memory for large row groups; memory mapping and pre-buffering would not.
            with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
                yield from _pairs(_ParquetRows(file, size, place), size, place, options, report)
        else:
            with pyarrow.OSFile(str(path)) as stream:
                yield from _pairs(_ArrowRows(stream, size, place), size, place, options, report)
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = one_line(str(error), 60)
        raise UserError(f"{place}: a damaged {kind.title()} file ({reason}); download it again") from None


class _ParquetRows:
    """The rows of a Parquet file, a few at a time."""

    def __init__(self, file: Any, size: int, place: str) -> None:
        self._file = file
        self._groups = file.metadata.num_row_groups
        groups = (file.metadata.row_group(number) for number in range(self._groups))
        allowance(place, size).spend(sum(group.total_byte_size for group in groups))
        self.schema = file.schema_arrow
        self.share = 0.0  # of the file that has been read

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows with these columns, in batches of ROWS at most."""
        for group in range(self._groups):
            yield from self._file.iter_batches(ROWS, [group], columns, use_threads=False)
            self.share = (group + 1) / self._groups


class _ArrowRows:
    """The rows of an Arrow file, or of a stream as `datasets` saves it; a batch of the file is held at a time."""

    def __init__(self, stream: Any, size: int, place: str) -> None:
        import pyarrow.ipc

        self._stream, self._size = stream, size
        self._is_file = stream.read(len(ARROW)) == ARROW
        stream.seek(0)
        self._reader = pyarrow.ipc.open_file(stream) if self._is_file else pyarrow.ipc.open_stream(stream)
        self._allowed = allowance(place, size)
        self.schema = self._reader.schema
        self.share = 0.0

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows with these columns, in batches of ROWS at most."""
        batches = map(self._reader.get_batch, range(self._reader.num_record_batches)) if self._is_file else self._reader
        for batch in batches:
            self._allowed.spend(batch.nbytes)
            batch.validate(full=True)  # a damaged offset would end the process
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS).select(columns)
            self.share = min(1.0, self._stream.tell() / self._size)


def _pairs(
    file: "_ParquetRows | _ArrowRows", size: int, place: str, options: ReadOptions, report: Report
) -> Iterator[Pair]:
    before = report.read_bytes
    columns, renamed = _columns(file.schema, options.columns, place)

    def rows() -> Iterator[tuple[int, int, object]]:
        number = 0
        for batch in file.batches(columns):
            for row in batch.select(columns).to_pylist():
                number += 1
                value = dict(zip(renamed, row.values(), strict=True)) if len(renamed) > 1 else row[columns[0]]
                yield number, batch.nbytes // max(1, batch.num_rows), value
            report.read_bytes = before + int(size * file.share)

    values = Ahead(rows())
    walk = Walk(ReadOptions(me=options.me), report, place, lambda: f"{place}, row {values.number:,}")
    pairs = walk.checked(pairs_of_rows(values, walk))
    yield from without_lost(pairs, UNDECODABLE, lambda: walk.drop("pairs with characters that were lost before"))
    report.read_bytes = before + size


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
