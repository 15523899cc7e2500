"""Columnar files: Parquet, Arrow and Feather, and so the saved folders of Hugging Face's `datasets`.

Each row is an object with the names of the columns, or the value of the only one that has lists. pyarrow reads them; it
is an optional dependency.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.unpacking import ARROW, ARROW_STREAM, PARQUET, Allowance, beginning
from chatbot.display import one_line
from chatbot.errors import UserError

DICTIONARY, BATCH = 2, 3  # kinds of messages
ROWS = 512  # converted to Python's objects at once
KINDS = {PARQUET: "parquet", ARROW: "arrow", ARROW_STREAM: "arrow"}  # a Feather file is an Arrow file


def arrow_kind(path: Path) -> str:
    """Return the format of a columnar file, "" for any other file."""
    return next((kind for magic, kind in KINDS.items() if beginning(path).startswith(magic)), "")


def arrow_rows(path: Path, kind: str, place: str, report: Report) -> Iterator[Any]:
    """Yield each row. Holds a few in memory.

    Raises UserError when pyarrow is not installed, and for a damaged file.
    """
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError:
        title = {"parquet": "a Parquet file", "arrow": "an Arrow file"}[kind]
        raise UserError(f"{place}: {title}; run `pip install pyarrow`, which reads it") from None
    size = path.stat().st_size
    before = report.read_bytes
    allowed = Allowance(place, size)
    try:
        if kind == "parquet":
            # Buffers bound the memory for large row groups; memory mapping and pre-buffering would not.
            with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
                yield from _rows(_parquet_batches(file, allowed), place, size, before, report)
        else:
            yield from _rows(_arrow_batches(path, size, allowed), place, size, before, report)
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, IndexError, struct.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = one_line(str(error), 60)
        raise UserError(f"{place}: a damaged {kind.title()} file ({reason}); download it again") from None
    report.read_bytes = before + size


def _rows(batches: Iterator[tuple[Any, float]], place: str, size: int, before: int, report: Report) -> Iterator[Any]:
    for batch, share in batches:
        report.read_bytes = before + int(size * share)
        names = [field.name for field in batch.schema if has_text(field.type) or not field.type.num_fields]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UserError(f"{place}: two columns have the name {one_line(twice, 30)}; rename one of them")
        lists = [name for name in names if batch.schema.field(name).type.num_fields]
        texts = [batch[name].cast(_with_written_times(batch[name].type)) for name in names]
        for row in type(batch).from_arrays(texts, names).to_pylist():
            yield row[lists[0]] if len(names) == len(lists) == 1 else row


def _with_written_times(kind: Any) -> Any:
    """Return a type with text in place of times: Python has no nanoseconds, and no years above 9999."""
    import pyarrow.types

    if pyarrow.types.is_temporal(kind) and not pyarrow.types.is_interval(kind):
        return pyarrow.string()
    if pyarrow.types.is_dictionary(kind):
        return _with_written_times(kind.value_type)
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(_with_written_times(field.type)) for field in kind])
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        new = pyarrow.list_ if pyarrow.types.is_list(kind) else pyarrow.large_list
        return new(kind.value_field.with_type(_with_written_times(kind.value_type)))
    return kind


def has_text(kind: Any) -> bool:
    """Return whether a type of Arrow is text, or a list or an object that contains text."""
    if kind.num_fields:
        return any(has_text(kind.field(number).type) for number in range(kind.num_fields))
    value = getattr(kind, "value_type", kind)  # of a dictionary of repeated texts
    return str(value) in ("string", "large_string", "string_view")


def _parquet_batches(file: Any, allowed: Allowance) -> Iterator[tuple[Any, float]]:
    """Yield batches of at most ROWS rows, each with the share of the file that was read before it."""
    groups = file.metadata.num_row_groups
    allowed.spend(sum(file.metadata.row_group(number).total_byte_size for number in range(groups)))
    columns = [field.name for field in file.schema_arrow if has_text(field.type) or not field.type.num_fields]
    for group in range(groups):
        for batch in file.iter_batches(ROWS, [group], columns, use_threads=False):
            yield batch, group / groups


def _arrow_batches(path: Path, size: int, allowed: Allowance) -> Iterator[tuple[Any, float]]:
    """Yield the batches of an Arrow file, or of a stream as `datasets` saves it."""
    import pyarrow.ipc

    with pyarrow.memory_map(str(path)) as mapped, pyarrow.OSFile(str(path)) as stream:
        begin = (
            len(ARROW) if mapped.read(len(ARROW)) == ARROW else 0
        )  # a file is a stream between a mark and a directory
        mapped.seek(begin)
        stream.seek(begin)
        for message in pyarrow.ipc.MessageReader.open_stream(mapped):
            allowed.spend(_size(message.metadata.to_pybytes(), message.body))
        share = 0.0
        for batch in pyarrow.ipc.open_stream(stream):
            batch.validate(full=True)  # a damaged offset would end the process
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS), share
            share = min(1.0, stream.tell() / size)


def _size(message: bytes, body: Any) -> int:
    """Return the size in bytes of a message's buffers once decompressed, which stands before each compressed one.

    The message is in FlatBuffers: a table begins with the distance to its list of the places of its fields.
    """

    def number(kind: str, place: int) -> int:
        return int(struct.unpack_from(f"<{kind}", message, place)[0])

    def field(table: int, index: int) -> int:
        fields = table - number("i", table)
        place = number("H", fields + 4 + 2 * index) if 4 + 2 * index < number("H", fields) else 0
        return table + place if place else 0

    def target(place: int) -> int:
        return place + number("I", place)

    kind = field(target(0), 1)
    batch = field(target(0), 2)
    if not kind or not batch or message[kind] not in (DICTIONARY, BATCH):
        return 0
    batch = target(batch) if message[kind] == BATCH else target(field(target(batch), 1))
    if not field(batch, 3):  # not compressed
        return int(body.size)
    buffers = target(field(batch, 2))
    places = (buffers + 4 + 16 * index for index in range(number("I", buffers)))
    sizes = ((number("q", place), number("q", place + 8)) for place in places)
    return sum(max(length, *struct.unpack_from("<q", body, offset)) for offset, length in sizes if length)
