"""YAML as ChatterBot writes it: {categories: [...], conversations: [[question, answer, ...], ...]}, or a bare list.

Built from the parser's events, so that no Python object can be, and a plain scalar ("1", "yes") stays as written.
"""

from collections.abc import Iterator

import yaml

from chatbot.corpus.reading.conversations import pairs_of
from chatbot.corpus.reading.lines import Pair, decoded
from chatbot.corpus.reading.nested import built
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.shown import shown
from chatbot.corpus.reading.text import Text
from chatbot.errors import UserError

LARGEST = 64 * 2**20  # characters
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may be built without C


def read_yaml(text: Text, columns: tuple[str, ...], report: Report) -> Iterator[Pair]:
    """The pairs of a YAML file. Raises UserError, with the line, for what is not YAML or not plain text in it."""
    content = text.stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise UserError(f"{text.place}: more than {LARGEST // 2**20} MiB of YAML; give JSON Lines or TSV")

    def drop(reason: str) -> None:
        report.drop(reason, text.place)

    def pairs() -> Iterator[Pair]:
        for document in built(_events(content, text.place), 0, text.place):
            yield from pairs_of(document, columns, drop)

    try:
        yield from decoded(pairs(), text, report, drop)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{text.place}, line {mark.line + 1}" if mark else text.place
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        raise UserError(f"{place}: not YAML ({shown(str(problem))}); mend that line") from None


def _events(content: str, place: str) -> Iterator[tuple[str, object]]:
    for event in yaml.parse(content, Loader=Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):  # a few lines of them can stand for billions of values
            raise UserError(
                f"{place}, line {line}: an alias (*{shown(str(event.anchor))}); write the text itself, in quotes"
            )
        tag = str(getattr(event, "tag", ""))
        if tag.startswith("tag:yaml.org,2002:python/"):
            raise UserError(f"{place}, line {line}: asks for a Python object ({shown(tag)}); only text is read")
        if isinstance(event, yaml.ScalarEvent):
            yield "string", event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            yield "start_array", None
        elif isinstance(event, yaml.SequenceEndEvent):
            yield "end_array", None
        elif isinstance(event, yaml.MappingStartEvent):
            yield "start_map", None
        elif isinstance(event, yaml.MappingEndEvent):
            yield "end_map", None
