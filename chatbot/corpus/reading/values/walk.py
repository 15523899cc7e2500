"""What the readers of nested values share: the options, the report, and whether a doubt can still be asked about."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from chatbot.corpus.reading.display import SHOWN_NAME, listing, one_line
from chatbot.corpus.reading.options import ReadOptions
from chatbot.corpus.reading.pair import Pair
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError

MAX_DEPTH = 16  # of nested lists and objects
HEAD, MAX_HEAD = 50, 4 * 2**20  # values and bytes of a list that decide how it is read
NO_PAIR = "records without question and answer"
DOUBTFUL = "records whose reading is in doubt"


class UnknownFieldsError(UserError):
    """A file has no pairs, but objects of texts with unknown fields."""


@dataclass
class Walk:
    """The state of reading the values of one file."""

    options: ReadOptions
    report: Report
    place: str  # of the file, for messages
    locate: Callable[[], str]  # the place of the current value: "a.json, item 3"
    before: int = -1  # pairs in the report when the file was begun
    fields: tuple[str, ...] = ()  # of the first object of texts whose fields are not known
    held: list[tuple[str, str, int]] | None = (
        None  # (reason, place, count) of parts without pairs that are not counted yet
    )

    def __post_init__(self) -> None:
        self.before = self.report.pairs if self.before < 0 else self.before

    def drop(self, reason: str, count: int = 1) -> None:
        """Count parts without pairs, with the place of the first."""
        if self.held is None:
            self.report.drop(reason, self.locate(), count)
        else:
            self.held.append((reason, self.locate(), count))

    def doubts(self, question: str) -> bool:
        """Return whether to read on in doubt. question: why the reading may be wrong, and the flag that settles it.

        At the beginning of a file the user is asked, who sees the pairs as they would be read; later, it is too late
        to ask, and the value is counted and left out.
        """
        if self.report.pairs == self.before:
            self.report.doubt = self.report.doubt or question
            return True
        self.drop(DOUBTFUL)
        return False

    def holding(self) -> "Walk":
        """Return a walk for parts that may well have no pairs: what it drops is held."""
        return replace(self, held=[])

    def release(self, held: Iterable[tuple[str, str, int]]) -> None:
        """Count what another walk has held."""
        for entry in held:
            if self.held is None:
                self.report.drop(*entry)
            else:
                self.held.append(entry)

    def checked(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the pairs. Raises UnknownFieldsError at the end if there were none, but objects of texts."""
        found = False
        for pair in pairs:
            found = True
            yield pair
        if not found and self.fields and not self.options.columns:
            problem = f"{self.place}: no known question and answer; give --columns and two of: "
            raise UnknownFieldsError(listing(problem, [one_line(name, SHOWN_NAME) for name in self.fields]))


class Ahead(Iterator[object]):
    """A stream of values whose first ones can be looked at before they are taken."""

    def __init__(self, values: Iterable[tuple[int, int, object]]) -> None:
        """values: (its number, its size in bytes, a value)."""
        self._values = iter(values)
        self._held: deque[tuple[int, int, object]] = deque()
        self.number = 0  # of the value taken last

    def __next__(self) -> object:
        self.number, _, value = self._held.popleft() if self._held else next(self._values)
        return value

    def head(self) -> list[object]:
        """Return the first values, before any is taken: at most HEAD, and not many more than MAX_HEAD bytes."""
        size = 0
        while len(self._held) < HEAD and size < MAX_HEAD and (item := next(self._values, None)) is not None:
            self._held.append(item)
            size += item[1]
        return [value for _, _, value in self._held]
