"""Blocks of lines: what begins one, such as a label or the head of a message, and the lines below it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Generic, TypeVar

from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.text_file import is_rule

MAX_BLOCK = 100_000  # characters; the lines after them are left out
Begin = TypeVar("Begin")


@dataclass
class Block(Generic[Begin]):
    """What begins a block, and the lines below it."""

    begin: Begin
    place: str  # of its first line
    lines: list[str] = field(default_factory=list)


def blocks(
    numbered: Iterable[tuple[int, str | None]],
    begins: Callable[[str, str], Sequence[Begin]],
    place: str,
    report: Report,
) -> Iterator[Block[Begin] | None]:
    """Yield the blocks, and None for a line that is missing, with which the block around it is lost.

    numbered: as `text_file.lines` yields it. begins: from a line and the following one to what begins on the line,
    which may be several blocks or none. place: of the text.
    """
    block: Block[Begin] | None = None
    size = 0  # of the block
    for (number, line), (_, following) in pairwise(chain(numbered, ((0, ""),))):
        begun = begins(line, following or "") if line else ()
        if line is None:
            block = None
            yield None
        elif begun:
            for begin in begun:
                if block is not None:
                    yield block
                block, size = Block(begin, f"{place}, line {number}"), 0
        elif block is not None:
            size += len(line) + 1
            if size <= MAX_BLOCK:
                block.lines.append(line)
        elif line.strip() and not is_rule(line):
            report.drop("lines before the first label or head", f"{place}, line {number}")
    if block is not None:
        yield block
