"""Options for reading files, and reports that count dropped items and unused fields."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chatbot.errors import UserError


class LeftOutError(UserError):
    """An error about one file. If other files contain pairs, the file is skipped instead."""

    def __init__(self, reason: str, message: str, details: Sequence[str] = ()) -> None:
        """Create the error.

        Args:
            reason: Reason under which a skipped file is counted in the report.
            message: The error message.
            details: Further lines to show below the message.
        """
        super().__init__(message, details)
        self.reason = reason


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading the files of a corpus. The class is hashable, because the options are part of a cache key."""

    columns: tuple[str, ...] = ()  # question and answer columns, by name or by number from 1; () to detect them
    charset: str | None = None  # Python codec; None to detect the charset
    format: str | None = None  # format in read.FORMATS or heads.yaml; None to detect the format
    me: str | None = None  # name or number of the person whose replies are learned; None for everyone
    part: str | None = None  # part of a JSON object to read, such as "training"; None for the whole object
    map: str | None = None  # JMESPath expression that converts a JSON value or a row to pairs, turns or messages
    head: str | None = None  # pattern of the head of each message in a plain-text chat
    dates: str | None = None  # "dmy" or "mdy", the order of day and month in ambiguous dates; None to ask the user


DETECTED = ReadOptions()


# Reasons that begin with this text are counted as unused fields, not as dropped items: the pairs are still learned.
UNUSED_FIELDS = "fields that are not used"
ALONE = "conversations of one utterance"


@dataclasses.dataclass
class DropCount:
    """How many items were dropped or unused for one reason, and where the first item was found."""

    count: int
    first: str


@dataclasses.dataclass
class Report:
    """The results of reading one source, such as a file: detected formats, dropped items and warnings."""

    file: str = ""  # file name given by the user
    formats: list[str] = dataclasses.field(default_factory=list)  # distinct formats; archives can contain several
    charsets: list[str] = dataclasses.field(default_factory=list)  # distinct charsets
    columns: list[str] = dataclasses.field(default_factory=list)  # descriptions of the question and answer columns
    doubt: str = ""  # why the pairs may be wrong, and the flag that confirms them
    has_names: bool = False  # whether the speakers have names, so that --me can select one by name
    pairs: int = 0  # number of pairs before cleaning
    read_bytes: int = 0  # number of bytes read from disk so far
    dropped: dict[str, DropCount] = dataclasses.field(default_factory=dict)
    unused: dict[str, DropCount] = dataclasses.field(default_factory=dict)  # fields and turns that are not learned
    changed: dict[str, int] = dataclasses.field(default_factory=dict)  # number of texts changed by each cleaning rule

    def note(self, format_name: str, charset: str) -> None:
        """Record a format and a charset that occur in the source."""
        for names, name in ((self.formats, format_name), (self.charsets, charset)):
            if name not in names:
                names.append(name)

    def drop(self, reason: str, place: str = "", count: int = 1) -> None:
        """Count items that are dropped for a reason. `place` is where they were found, such as 'chats.tsv, line 7'."""
        counts = self.unused if reason.startswith(UNUSED_FIELDS) else self.dropped
        entry = counts.setdefault(reason, DropCount(0, place))
        entry.count += count
        entry.first = entry.first or place

    def warn(self, problem: str, place: str) -> None:
        """Add a warning about the data, unless the same warning already exists."""
        self.unused.setdefault(problem, DropCount(0, place))

    def add(self, other: "Report") -> None:
        """Add the results of a report about another part of the same file."""
        for totals, counts in ((self.dropped, other.dropped), (self.unused, other.unused)):
            for reason, entry in counts.items():
                total = totals.setdefault(reason, DropCount(0, entry.first))
                total.count += entry.count
        for rule, count in other.changed.items():
            self.changed[rule] = self.changed.get(rule, 0) + count

    def lines(self) -> list[str]:
        """Return one line for each reason for which items were dropped, most frequent first."""
        return _lines(self.dropped)

    def notes(self) -> list[str]:
        """Return one line for each kind of unused field or turn, most frequent first."""
        return _lines(self.unused)


@dataclass
class Location:
    """Position of a reader in a file, shown in messages and the report."""

    unit: str  # "line", "item" or "row"
    place: str  # name of the file
    report: Report
    number: int = 0

    def drop(self, reason: str) -> None:
        """Count an item at this location as dropped."""
        self.report.drop(reason, str(self))

    def __str__(self) -> str:
        return f"{self.place}, {self.unit} {self.number:,}"


def _lines(counts: dict[str, DropCount]) -> list[str]:
    lines = []
    for reason, entry in sorted(counts.items(), key=lambda item: -item[1].count):
        place = f" (first: {entry.first})" if entry.first else ""
        lines.append(f"{reason}: {entry.count:,}{place}" if entry.count else f"{reason}{place}")
    return lines


def restore_report(values: dict[str, Any], name: str) -> Report:
    """Restore a report from its `dataclasses.asdict` values. `name` is the current name of the file."""

    def rename_places(counts: dict[str, dict[str, Any]]) -> dict[str, DropCount]:
        result = {}
        for reason, entry in counts.items():
            first = entry["first"]
            if first.startswith(values["file"]):
                first = name + first.removeprefix(values["file"])
            result[reason] = DropCount(entry["count"], first)
        return result

    counts = {kind: rename_places(values[kind]) for kind in ("dropped", "unused")}
    return Report(**{**values, "file": name, **counts})
