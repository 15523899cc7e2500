"""Columnar files: Parquet, Arrow and Feather, and so the saved folders of Hugging Face's `datasets`.

Each row is an object with the names of the columns, or the value of the only one that has lists. pyarrow reads them; it
is an optional dependency.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from chatbot.corpus.reading.report import Report
from chatbot.display import one_line
from chatbot.errors import UserError

ROWS = 512  # converted to Python's objects at once
MARK = b"ARROW1\0\0"  # at the beginning of an Arrow file, which is a stream between this and a directory


def rows(path: Path, kind: str, place: str, report: Report, spend: Callable[[int], None]) -> Iterator[Any]:
    """Yield each row of a file, "parquet" or "arrow" by its kind. Holds a few in memory.

    spend: called with each number of bytes in memory, to refuse too many. Raises UserError when pyarrow is not
    installed, and for a damaged file.
    """
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ModuleNotFoundError:
        title = {"parquet": "a Parquet file", "arrow": "an Arrow file"}[kind]
        raise UserError(f"{place}: {title}; run `pip install pyarrow`, which reads it") from None
    size = path.stat().st_size
    before = report.read_bytes
    batches = {"parquet": _parquet_batches, "arrow": _arrow_batches}[kind]
    try:
        for batch, share in batches(path, spend):
            report.read_bytes = before + int(size * share)
            yield from _rows(batch, place)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, IndexError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = one_line(str(error), 60)
        raise UserError(f"{place}: a damaged {kind.title()} file ({reason}); download it again") from None


def _rows(batch: Any, place: str) -> Iterator[Any]:
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


def _parquet_batches(path: Path, spend: Callable[[int], None]) -> Iterator[tuple[Any, float]]:
    """Yield batches of at most ROWS rows, each with the share of the file that was read before it."""
    import pyarrow.parquet

    # Buffers bound the memory for large row groups; memory mapping and pre-buffering would not.
    with pyarrow.parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
        groups = file.metadata.num_row_groups
        spend(sum(file.metadata.row_group(number).total_byte_size for number in range(groups)))
        columns = [field.name for field in file.schema_arrow if has_text(field.type) or not field.type.num_fields]
        for group in range(groups):
            for batch in file.iter_batches(ROWS, [group], columns, use_threads=False):
                yield batch, group / groups


def _arrow_batches(path: Path, spend: Callable[[int], None]) -> Iterator[tuple[Any, float]]:
    """Yield the batches of an Arrow file, or of a stream as `datasets` saves it."""
    import pyarrow.ipc

    with pyarrow.OSFile(str(path)) as stream:
        if stream.read(len(MARK)) != MARK:
            stream.seek(0)
        share = 0.0
        for batch in pyarrow.ipc.open_stream(stream):
            # A dictionary belongs to all batches.
            known = sum(column.dictionary.nbytes for column in batch.columns if share and hasattr(column, "dictionary"))
            spend(batch.nbytes - known)
            batch.validate(full=True)  # a damaged offset would end the process
            for start in range(0, batch.num_rows, ROWS):
                yield batch.slice(start, ROWS), share
            share = min(1.0, stream.tell() / path.stat().st_size)
