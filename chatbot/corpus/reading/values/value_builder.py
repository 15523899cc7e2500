"""Lists and objects built from the events of a JSON or YAML parser."""

from collections.abc import Iterable, Iterator

from chatbot.errors import UserError

MAX_DEPTH = 32  # of nested lists and objects, which bounds the parser's memory


def build_values(events: Iterable[tuple[str, object]], level: int, place: str) -> Iterator[object]:
    """Yield the values at this level: 0 for whole documents, 1 for the items of one document that is a list.

    An event is (its name in ijson, its scalar). Keys that are not text are dropped with their values.
    Raises UserError for values that are nested too deeply.
    """
    stack: list[list[object]] = []
    for event, scalar in events:
        value = scalar
        if event in ("start_array", "start_map"):
            if len(stack) == MAX_DEPTH:
                raise UserError(
                    f"{place}: lists nested more than {MAX_DEPTH} deep, so not conversations; give another file"
                )
            stack.append([])
            continue
        if event in ("end_array", "end_map"):
            value = stack.pop()
            if event == "end_map":
                parts = iter(value)
                value = {key: part for key, part in zip(parts, parts, strict=False) if isinstance(key, str)}
            if level and not stack:
                return
        if len(stack) == level:
            yield value
        elif stack:
            stack[-1].append(value)
