"""Examples of each rule, and properties of all rules together."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import TEXT_RULES
from chatbot.corpus.cleaning import cleaner, tidy
from chatbot.errors import UserError

# A rule, a text, and what the rule makes of it, a line each; where both are the same, the text has nothing to clean.
CLEANED = Path(__file__).with_name("cleaned.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(("rule", "text", "cleaned"), [json.loads(line) for line in CLEANED])
def test_rule_cleans_text(rule: str, text: str, cleaned: str) -> None:
    changed: Counter[str] = Counter()
    assert cleaner([rule], changed)(text) == cleaned
    assert changed == ({rule: 1} if tidy(text) != cleaned else {})
    assert cleaner([])(text) == tidy(text)  # without the rule


def test_rules_are_applied_in_their_own_order() -> None:
    flag_order, changed = ["punctuation", "nfkc"], Counter[str]()
    assert cleaner(flag_order, changed)("好！!") == "好!"
    assert changed == {"nfkc": 1, "punctuation": 1}


def test_tidy_normalises_spaces() -> None:
    assert tidy(" 你好 \t世界\u3000！\r\n") == "你好 世界 ！"
    assert tidy("\ud800") == ""
    assert tidy("a\u2581b  c") == "a b c"


@given(
    st.text(max_size=50)
    | st.text("<>&;#*b\\\\n_1. 好", max_size=30)
    | st.text("a 1@:/！!。.\u2581\u200b\n http", max_size=30),
    st.sets(st.sampled_from([*TEXT_RULES])),
)
def test_cleaned_text_is_one_line_with_single_spaces(text: str, rules: set[str]) -> None:
    cleaned = cleaner(rules)(text)
    assert cleaned == " ".join(cleaned.split())
    assert "\u2581" not in cleaned
    cleaned.encode()


def test_missing_opencc_error_gives_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opencc", None)
    with pytest.raises(UserError, match="--clean simplified: OpenCC is not installed; run"):
        cleaner(["simplified"])
