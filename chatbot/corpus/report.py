"""What was left out of a corpus, counted by reason."""

import dataclasses


@dataclasses.dataclass
class Dropped:
    """How often a reason to leave something out occurred, and the first place where it did."""

    count: int
    first: str


class Report:
    """Counts what is dropped on the way from a file to its pairs."""

    def __init__(self) -> None:
        self.dropped: dict[str, Dropped] = {}

    def drop(self, reason: str, place: str = "", count: int = 1) -> None:
        """Count things left out for this reason; place is where the first stands, such as 'chats.tsv, line 7'."""
        entry = self.dropped.setdefault(reason, Dropped(0, place))
        entry.count += count

    def lines(self) -> list[str]:
        """One line a reason, the most frequent first."""
        lines = []
        for reason, entry in sorted(self.dropped.items(), key=lambda item: -item[1].count):
            place = f" (first: {entry.first})" if entry.first else ""
            lines.append(f"{reason}: {entry.count:,}{place}")
        return lines
