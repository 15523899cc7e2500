"""Maps of the user give the same as JMESPath's own evaluation; files with maps are in `wild`."""

from typing import Any

import jmespath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.reading.mapping import compiled, flag, written

KEYS = st.sampled_from(("a", "b", "m", "t", "名"))
SCALARS = st.sampled_from((None, True, 0, 1.5, "", "甲", "x"))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
EXPRESSIONS = (
    *(
        "{question: a, answer: b}",
        "{question: a.t, answer: m.b}",
        "m[].{speaker: a, text: t}",
        "m[*].{role: a, text: b}",
    ),
    *("a.m[].{speaker: t, text: b}", "[].{speaker: a, text: t}", "m[?a].{speaker: a, text: t}", "m[].t", "a.b[].m[].t"),
    *("[*].{speaker: a.b, text: t}", "a && {question: a, answer: b}", '{question: "名", answer: [a, b]}', "m[0].t"),
    *("@", "a", "{turns: m}", "join(',', m)", "m.*.{role: a, text: b}", "[m, [a]][][].{role: a, text: b}"),
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(value=VALUES)
def test_results_are_those_of_jmespath(expression: str, value: Any) -> None:
    """The twin evaluates the whole value; the map does, too, and walks the items of a list one by one."""
    found = compiled(expression)
    if isinstance(value, dict) and found.path == ():
        value = [value]  # a list that is written as a line each
    try:
        whole = jmespath.search(expression, value)
    except jmespath.exceptions.JMESPathError:
        whole = None
    results = whole if isinstance(whole, list) and found.is_list else [] if whole is None or whole is False else [whole]
    assert _filled(found.results(value)) == _filled(results)
    if found.path is None or not found.is_list:
        return
    items: Any = value
    for step in found.path:
        items = items.get(step) if isinstance(items, dict) else None
    if isinstance(items, list):
        assert _filled([result for item in items for result in found.results(item, True)]) == _filled(results)


def _filled(results: list[Any]) -> list[Any]:
    """Without what JMESPath makes of a value that has no fields."""
    return [each for each in results if (any(v is not None for v in each.values()) if isinstance(each, dict) else each)]


@pytest.mark.parametrize("names", [{"question": "a", "answer": "b"}, {"question": "问 题", "answer": "it's"}])
def test_what_is_written_is_compiled(names: dict[str, str]) -> None:
    value = {field: field for field in names.values()}
    assert compiled(written(names)).results(value) == [names]
    assert flag(written(names)).startswith("--map '")
