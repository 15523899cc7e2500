"""Tables with one message on each row, such as WeChat's: who sent it, its text, often its time, kind and chat."""

from collections.abc import Iterator, Sequence

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.formats.columns import key_of
from chatbot.corpus.reading.formats.dialect import Dialect, rows_of, rows_of_text
from chatbot.corpus.reading.formats.fields import Ahead, Walk
from chatbot.corpus.reading.formats.messages import fields_of_row, pairs_of_people
from chatbot.corpus.reading.open.text_file import TextFile, decoded
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

_DOUBTFUL = frozenset(  # columns that other tables have, too
    {"value", "sentence", "parts", "turn", "transcript", "文本", "role", "角色", "agent", "creator", "participant"}
)


def is_messages(text: TextFile) -> bool:
    """Return whether the text is a table with a header of messages."""
    return _dialect_of(text.first_lines) is not None


def _dialect_of(sample: Sequence[str]) -> Dialect | None:
    """Return the dialect of a table of messages: a comma, a semicolon or a tab; None for any other text."""
    for dialect in map(Dialect, ",;\t"):
        row = next((row for _, row, _ in rows_of(sample[:20], dialect) if row), [])
        fields = fields_of_row(tuple(map(key_of, row)))
        if len(row) > 1 and fields and not _DOUBTFUL.intersection((fields.text, fields.speaker)):
            return dialect
    return None


def read_message_rows(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of all chats. Raises UserError if `options.me` wrote no message."""
    dialect = _dialect_of(text.first_lines)
    if dialect is None:
        raise UserError(
            f"{text.place}, line 1: no header names the text of messages and who sent them; add a first line such as "
            "time,sender,content"
        )

    def rows() -> Iterator[tuple[int, int, object]]:
        header: tuple[str, ...] = ()
        for number, row, _ in rows_of_text(text, report, dialect):
            if not header:
                header = tuple(map(key_of, row))
                fields = fields_of_row(header)
                needed = [header.index(name) for name in fields[:5] if name] if fields else []
            elif len(row) <= max(needed):
                report.drop("rows with too few columns", f"{text.place}, line {number}")
            else:
                yield number, 0, dict(zip(header, row, strict=False))

    values = Ahead(rows())
    walk = Walk(options, report, text.place, lambda: f"{text.place}, line {values.number}")
    yield from decoded(pairs_of_people(values, walk), text, report, walk.drop)
