"""What the user gives about files, and the counts of what was found in them and of what was dropped, by reason."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from chatbot.errors import UserError


class UnknownFieldsError(UserError):
    """Nothing is known of the fields of a file, which is left out if other files have pairs."""


@dataclass(frozen=True)
class ReadOptions:
    """How the files of a corpus are read. Hashable, and part of the cache's key."""

    columns: tuple[str, ...] = ()  # of question and answer, by name or by number from 1; () to detect them
    charset: str | None = None  # one of Python's codecs
    format: str | None = None  # the name of one of FORMATS in detect.py
    me: str | None = None  # the name or number of the person whose replies in chat exports are learned; None for all
    part: str | None = None  # of a JSON object, the part whose keys are read; None for all keys
    map: str | None = None  # a JMESPath expression from a value of JSON, or a row, to what is learned
    head: str | None = None  # the pattern of the line above or before each message of a text
    dates: str | None = None  # dmy or mdy, where the dates of a chat may be both; None to ask


DETECTED = ReadOptions()


# Reasons that count parts of records whose pairs were read. They are counted apart from what was dropped.
UNUSED_FIELDS = "fields that are not used"
ALONE = "conversations of one utterance"


@dataclasses.dataclass
class Dropped:
    """The number of items dropped or not used for one reason, and the place of the first."""

    count: int
    first: str


@dataclasses.dataclass
class Report:
    """The counts of one file."""

    file: str = ""  # the name that the user gave
    formats: list[str] = dataclasses.field(default_factory=list)  # distinct, in order; an archive may contain several
    charsets: list[str] = dataclasses.field(default_factory=list)
    columns: list[str] = dataclasses.field(default_factory=list)  # of tables, distinct, and whether they have headers
    doubt: str = ""  # why the reading may be wrong, and the flag that settles it; set before the first pair of a text
    has_names: bool = False  # whether turns have names, so that --me can choose among them
    pairs: int = 0  # parsed, before cleaning
    read_bytes: int = 0  # from the disk so far
    dropped: dict[str, Dropped] = dataclasses.field(default_factory=dict)
    unused: dict[str, Dropped] = dataclasses.field(default_factory=dict)  # fields and turns beside the pairs
    changed: dict[str, int] = dataclasses.field(default_factory=dict)  # utterances changed, by cleaning rule

    def note(self, format_name: str, charset: str) -> None:
        """Add a format and a charset, once each."""
        for names, name in ((self.formats, format_name), (self.charsets, charset)):
            if name not in names:
                names.append(name)

    def drop(self, reason: str, place: str = "", count: int = 1) -> None:
        """Count items dropped for this reason. place: the place of the first, such as 'chats.tsv, line 7'."""
        counts = self.unused if reason.startswith(UNUSED_FIELDS) else self.dropped
        entry = counts.setdefault(reason, Dropped(0, place))
        entry.count += count
        entry.first = entry.first or place

    def warn(self, problem: str, place: str) -> None:
        """Add something that is not known about what is read, once for each place."""
        self.unused.setdefault(problem, Dropped(0, place))

    def add(self, other: "Report") -> None:
        """Add the counts of another part of the same file."""
        for mine, others in ((self.dropped, other.dropped), (self.unused, other.unused)):
            for reason, entry in others.items():
                total = mine.setdefault(reason, Dropped(0, entry.first))
                total.count += entry.count
        for rule, count in other.changed.items():
            self.changed[rule] = self.changed.get(rule, 0) + count

    def lines(self) -> list[str]:
        """Return one line for each reason to drop something, the most frequent first."""
        return _lines(self.dropped)

    def notes(self) -> list[str]:
        """Return one line for each kind of field or turn that is not used, the most frequent first."""
        return _lines(self.unused)


@dataclass
class Located:
    """The place of the value of a file that is read, for messages and for the report."""

    unit: str  # "line", "item" or "row"
    place: str  # the file
    report: Report
    number: int = 0

    def drop(self, reason: str) -> None:
        """Count what is dropped here for this reason."""
        self.report.drop(reason, str(self))

    def __str__(self) -> str:
        return f"{self.place}, {self.unit} {self.number:,}"


def _lines(counts: dict[str, Dropped]) -> list[str]:
    lines = []
    for reason, entry in sorted(counts.items(), key=lambda item: -item[1].count):
        place = f" (first: {entry.first})" if entry.first else ""
        lines.append(f"{reason}: {entry.count:,}{place}" if entry.count else f"{reason}{place}")
    return lines


def report_of(values: dict[str, Any], name: str) -> Report:
    """Return the report from the values of `dataclasses.asdict`, for a file that may have been renamed to `name`."""

    def renamed(counts: dict[str, dict[str, Any]]) -> dict[str, Dropped]:
        result = {}
        for reason, entry in counts.items():
            first = entry["first"]
            if first.startswith(values["file"]):
                first = name + first.removeprefix(values["file"])
            result[reason] = Dropped(entry["count"], first)
        return result

    counts = {kind: renamed(values[kind]) for kind in ("dropped", "unused")}
    return Report(**{**values, "file": name, **counts})
