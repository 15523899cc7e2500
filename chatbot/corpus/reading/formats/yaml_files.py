"""YAML: ChatterBot's {categories: [...], conversations: [[question, answer, ...], ...]}, and what JSON may contain.

Values are built from the parser's events: no Python object is created, and plain scalars ("1", "yes") remain text.
"""

import re
from collections.abc import Iterator

import yaml

from chatbot.corpus.reading.conversation import Pair
from chatbot.corpus.reading.display import one_line
from chatbot.corpus.reading.formats.fields import Walk
from chatbot.corpus.reading.formats.json_files import build_values
from chatbot.corpus.reading.formats.values import pairs_of
from chatbot.corpus.reading.open.file_kinds import MARKUP
from chatbot.corpus.reading.open.text_file import TextFile, decoded, whole_text
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.errors import UserError

Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # PyYAML may be installed without its C extension

_KEY = r"(?:[^\s:：\"'#-][^:：\n]{0,40}|\"[^\"\n]{0,60}\"|'[^'\n]{0,60}'):(?=\s|$)"
_START = re.compile(r"(categories|conversations)\s*:|-( +- | +\[|\s*$)")
_NAMED_START = re.compile(rf"{_KEY}|-(\s|$)")
_OBJECT = re.compile(rf"- +{_KEY}.*\n +{_KEY}")
EVENTS = {  # in ijson's words
    yaml.ScalarEvent: "string",
    yaml.SequenceStartEvent: "start_array",
    yaml.SequenceEndEvent: "end_array",
    yaml.MappingStartEvent: "start_map",
    yaml.MappingEndEvent: "end_map",
}
_SKIPPED = ("#", "---", "%YAML")


def is_yaml(text: TextFile) -> bool:
    """Return whether the text is YAML: by its name and its first line, or as a list of lists or of objects."""
    filled = [line for line in text.first_lines if line.strip() and not line.startswith(_SKIPPED)]
    first = filled[0] if filled else ""
    if "\t" in first or text.ending in MARKUP:
        return False
    named = text.ending in ("yaml", "yml") and _NAMED_START.match(first)
    return bool(named or _START.match(first.strip()) or _OBJECT.match("".join(filled[:2])))


def read_yaml(text: TextFile, options: ReadOptions, report: Report) -> Iterator[Pair]:
    """Yield the pairs of a YAML file. Raises UserError, with the line, for invalid YAML and aliases."""
    content = whole_text(text, "YAML")
    walk = Walk(options, report, text.place, lambda: text.place)

    def pairs() -> Iterator[Pair]:
        for document in build_values(_events(content, text.place), 0, text.place):
            yield from pairs_of(document, walk)

    try:
        yield from walk.checked(decoded(pairs(), text, report, walk.drop))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{text.place}, line {mark.line + 1}" if mark else text.place
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        raise UserError(f"{place}: not YAML ({one_line(str(problem))}); correct that line") from None


def _events(content: str, place: str) -> Iterator[tuple[str, object]]:
    for event in yaml.parse(content, Loader=Loader):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent):  # a few nested aliases can expand to billions of values
            raise UserError(
                f"{place}, line {line}: an alias (*{one_line(str(event.anchor))}) is not supported; "
                "write the text itself, in quotes"
            )
        if name := EVENTS.get(type(event)):
            yield name, getattr(event, "value", None)
