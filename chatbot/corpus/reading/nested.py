"""Values built from a parser's events: the one place where JSON and YAML documents become lists and objects."""

from collections.abc import Iterable, Iterator

from chatbot.errors import UserError

DEEPEST = 32  # lists and objects inside each other; a parser keeps what it has open, so this bounds its memory


def built(events: Iterable[tuple[str, object]], level: int, place: str) -> Iterator[object]:
    """The values at this level: 0 are the documents themselves, 1 the items of a document that is a list.

    An event is (its name in ijson, its scalar). Keys that are not text are left out with their values.
    Raises UserError for what is nested too deeply to be conversations.
    """
    stack: list[list[object]] = []
    for event, scalar in events:
        value = scalar
        if event in ("start_array", "start_map"):
            if len(stack) == DEEPEST:
                raise UserError(f"{place}: lists inside lists {DEEPEST} deep, so no conversations; name another file")
            stack.append([])
            continue
        if event in ("end_array", "end_map"):
            value = stack.pop()
            if event == "end_map":
                parts = iter(value)
                value = {key: part for key, part in zip(parts, parts, strict=False) if isinstance(key, str)}
        if len(stack) == level:
            yield value
        elif stack:
            stack[-1].append(value)
