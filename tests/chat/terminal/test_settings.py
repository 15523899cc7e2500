"""Settings of decoding in the chat in a terminal: /set and the flags."""

import pytest

from chatbot.chat.terminal.commands import changes_of, shown
from chatbot.errors import UserError
from tests.chat.terminal.fake_model import fake_model
from tests.chat.terminal.typed import Line, Printed, printed, typed

NAME_VALUE = "expected NAME=VALUE, such as temperature=0.8; several words are separated by commas, such as ban=one,two"


def test_settings_are_set_together_and_reset(capsys: Printed) -> None:
    lines: list[Line] = [
        "/set temperature=0.5 --seed=7",
        "a",
        "/set beam-size=5",
        "/set beam_size=5 temperature=",
        "b",
        "/set history=1",
        "c",
        "/settings",
        "/set default",
        "d",
    ]
    out, err = printed(capsys, lines, turns=2)
    assert out[:3] == ["a/s7.1", "b/1+2", "c/1+1"]
    assert [line.split() for line in out if line.startswith(("history ", "beam_size", "top_p"))] == [
        ["history", "1", "set"],
        ["beam_size", "5", "set"],
        ["top_p", "-"],
    ]
    assert out[-1] == "d/1+2"
    assert err[0] == "temperature=0.5, seed=7"
    assert err[1] == "error: beam_size 5 and temperature: beam search does not sample; give one"
    assert err[2:] == ["beam_size=5, temperature=-", "history=1", "All settings have their defaults."]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("temprature=1", "/set temprature: no such setting; the nearest is temperature"),
        ("=0.8", "/set =0.8: " + NAME_VALUE),
        ("temperature=hot", "/set temperature 'hot': expected a number"),
        ("seed=1 beam_size=0", "/set beam_size 0: must be at least 1"),
        ("history=3", "/set history=3: the model was trained to read 2 turns before a question; give at most 2"),
        ("n_best=2", "n_best 2: the search yields at most 1; raise beam_size or candidates"),
        ("seed=5 rerank=2 beam_size=3", "rerank: this attempt did not learn both directions"),
        ("temperature=0", "/set temperature 0.0: must be above 0; for greedy search, set beam_size 1"),
        ("default beam_size=2", "/set default: " + NAME_VALUE),
        ("ban=我 不", "/set 不: " + NAME_VALUE),
        ("stop='a", "/set: no closing quotation; close the quotation mark, or write \\' for one"),
    ],
)
def test_wrong_setting_is_one_line_and_changes_nothing(capsys: Printed, change: str, message: str) -> None:
    out, err = printed(capsys, [f"/set {change}", "a", "/set seed=3 candidates=1", "b"], turns=2)
    assert out == ["a/1", "b/s3.1+2"]
    assert err == [f"error: {message}", "seed=3, candidates=1"]


def test_texts_with_spaces_and_several_words() -> None:
    assert changes_of("stop='a b',c ban=") == {"stop": ("a b", "c"), "ban": ()}
    assert shown(("a", "b")) == "a,b"


def test_user_error_for_bad_settings_at_the_start() -> None:
    with pytest.raises(UserError, match="--rerank"):
        typed(fake_model(), [], "--rerank", "1", "--beam-size", "2")
