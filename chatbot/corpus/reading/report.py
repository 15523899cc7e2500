"""What was found in one file of a corpus, and what was left out of it, counted by reason."""

import dataclasses
from typing import Any


@dataclasses.dataclass
class Dropped:
    """How often a reason to leave something out occurred, and the first place where it did."""

    count: int
    first: str


@dataclasses.dataclass
class Report:
    """Counts what is found and dropped on the way from a file to its pairs."""

    file: str = ""  # as the user names it
    formats: list[str] = dataclasses.field(default_factory=list)  # each once, as found; an archive may hold several
    encodings: list[str] = dataclasses.field(default_factory=list)
    pairs: int = 0  # parsed, before cleaning
    read_bytes: int = 0  # taken from the disk so far
    dropped: dict[str, Dropped] = dataclasses.field(default_factory=dict)
    changed: dict[str, int] = dataclasses.field(default_factory=dict)  # utterances changed, by cleaning rule

    def drop(self, reason: str, place: str = "", count: int = 1) -> None:
        """Count things left out for this reason; place is where the first stands, such as 'chats.tsv, line 7'."""
        entry = self.dropped.setdefault(reason, Dropped(0, place))
        entry.count += count
        entry.first = entry.first or place

    def add(self, other: "Report") -> None:
        """Count what another part of the same file had, too."""
        for reason, entry in other.dropped.items():
            self.drop(reason, entry.first, entry.count)
        for rule, count in other.changed.items():
            self.changed[rule] = self.changed.get(rule, 0) + count

    def lines(self) -> list[str]:
        """One line a reason, the most frequent first."""
        lines = []
        for reason, entry in sorted(self.dropped.items(), key=lambda item: -item[1].count):
            place = f" (first: {entry.first})" if entry.first else ""
            lines.append(f"{reason}: {entry.count:,}{place}")
        return lines


def report_of(values: dict[str, Any], name: str) -> Report:
    """The report that `dataclasses.asdict` made these values from, of a file that has this name now."""
    dropped = {}
    for reason, entry in values["dropped"].items():
        first = entry["first"]
        if first.startswith(values["file"]):
            first = name + first.removeprefix(values["file"])
        dropped[reason] = Dropped(entry["count"], first)
    return Report(**{**values, "file": name, "dropped": dropped})
