"""One declaration of a setting: its flag, its help, its check, its text in a shell and its value in a file."""

import dataclasses
import shlex
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.command_line import CommandLine
from chatbot.errors import UserError
from chatbot.flags import Flags, compose, flags_for, flags_of, flatten, nearest, setting


@dataclasses.dataclass(frozen=True)
class Inner(Flags, fixed=True):
    """Settings of a part."""

    ratio: float = setting(0.5, "a number", unset="by the corpus, or 0.5", group="numbers", above=0, maximum=1)
    limit: int | None = setting(None, "a whole number", minimum=0)
    free: bool = setting(False, "switched on", fixed=False)
    internal: int = 3


@dataclasses.dataclass(frozen=True)
class Outer(Flags):
    """Settings of a command."""

    words: tuple[str, ...] = setting((), "texts", group="texts", metavar="WORD")
    pair: tuple[str, ...] = setting(("a", "b"), "two texts", count=2)
    name: str = setting("", "a text, 100% of it")
    must: str = setting(..., "a choice", choices=("x", "y"))
    inner: Inner = dataclasses.field(default_factory=Inner)
    tied: bool = setting(True, "switched off", group="switches")
    both: bool = setting(False, "either", negatable=True)


LINE = CommandLine(Outer, "train", about="About.", example="--must x", common="must limit words")
WITH_WORDS = dataclasses.replace(LINE, positional="words", without="name")
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1).filter(lambda text: text[0] != "-")
SETTINGS = st.fixed_dictionaries(
    {"must": st.sampled_from("xy")},
    optional={
        "words": st.lists(TEXTS, min_size=1).map(tuple),
        "pair": st.tuples(TEXTS, TEXTS),
        "name": TEXTS,
        "ratio": st.floats(0, 1, exclude_min=True),
        "limit": st.integers(0, 2**63 - 1),
        "free": st.booleans(),
        "tied": st.booleans(),
        "both": st.booleans(),
    },
)


@hypothesis.settings(max_examples=40)
@given(SETTINGS)
def test_settings_survive_the_command_line_and_flattening(values: dict[str, Any]) -> None:
    settings = compose(Outer, **values)
    assert LINE.parse(shlex.split(flags_for(settings))) == settings
    assert compose(Outer, **flatten(settings)) == settings
    assert flatten(settings).keys() == {*flags_of(Outer), "internal"}
    assert all(flatten(settings)[name] == value for name, value in values.items())


def test_flags_are_given_in_their_order_without_defaults() -> None:
    settings = compose(Outer, must="x", both=True, tied=False, words=("a b",), ratio=0.5, limit=0)
    assert flags_for(settings) == "--words 'a b' --must x --limit 0 --no-tied --both"
    assert flags_for(Outer, {"limit": 7, "unknown": 1}) == "--limit 7"
    words = ["--must", "x", "--no-both", "--words", "a", "--words", "b", "c"]
    assert LINE.values(words) == {"must": "x", "both": False, "words": ("a", "b", "c")}
    assert LINE.values(["--must", "x", "--limit", "none"]) == {"must": "x", "limit": None}


def test_what_was_declared_is_completed() -> None:
    flags = flags_of(Outer)
    assert [*flags] == ["words", "pair", "name", "must", "ratio", "limit", "free", "tied", "both"]
    assert [flags[n].group for n in ("words", "must", "ratio", "free", "tied", "both")] == [
        *("texts", "texts", "numbers", "numbers", "switches", "switches")
    ]
    assert [name for name, flag in flags.items() if flag.fixed] == ["ratio", "limit"]
    assert [flags[name].kind for name in ("pair", "ratio", "limit", "free")] == [str, float, int, bool]
    shown = {name: flag.shown_default for name, flag in flags.items() if name != "must"}
    expected = ["none", "a b", "none", "by the corpus, or 0.5", "none", "off", "on", "off"]
    assert [*shown.values()] == expected
    with pytest.raises(TypeError, match="unknown settings: other, wrong"):
        compose(Outer, wrong=1, other=2, must="x")


def test_help_has_every_flag_with_its_value_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for words in (["-h"], ["--help"], ["--help", "numbers"]):
        with pytest.raises(SystemExit) as end:
            LINE.parse(words)
        assert end.value.code == 0
        shown[" ".join(words)] = " ".join(capsys.readouterr().out.split())
    assert shown["--help"] == (
        "usage: python train.py [flags] Train a chatbot on question-answer pairs, or resume the training. About. "
        "texts: --words WORD [WORD ...] texts (default: none) --pair NAME NAME two texts (default: a b) "
        "--name NAME a text, 100% of it (default: none) --must x|y a choice (required) "
        "numbers: --ratio R a number (default: by the corpus, or 0.5) --limit N a whole number (default: none) "
        "--free switched on (default: off) "
        "switches: --tied, --no-tied switched off (default: on) --both, --no-both either (default: off) "
        "help: -h show the common flags --help [GROUP] show all flags, or the flags of one group "
        "--version print the version and exit Example: python train.py --must x"
    )
    assert "flags: --must x|y a choice (required) --limit N" in shown["-h"]
    assert shown["-h"].endswith(
        "--words WORD [WORD ...] texts (default: none) help: -h show the common flags --help [GROUP] show all flags, "
        "or the flags of one group --version print the version and exit Example: python train.py --must x "
        "python train.py --help lists all 9 flags, --help GROUP the flags of one group: texts, numbers, switches."
    )
    assert "--ratio" in shown["--help numbers"]
    assert "--words" not in shown["--help numbers"]


def test_positional_words_are_values_of_a_setting() -> None:
    assert WITH_WORDS.parse(["a", "b", "--must", "x"]) == compose(Outer, words=("a", "b"), must="x")
    assert WITH_WORDS.parse(["--must", "x"]).words == ()
    assert "name" not in WITH_WORDS.flags
    with pytest.raises(UserError, match="WORD '': expected printable text"):
        WITH_WORDS.parse(["--must", "x", ""])
    with pytest.raises(SystemExit):
        WITH_WORDS.parse(["--must", "x", "--words", "a"])


def test_a_single_positional_value_may_be_given_by_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    line = dataclasses.replace(LINE, positional="name")
    assert line.parse(["a", "--must", "x"]) == line.parse(["--must", "x", "--name", "a"])


@pytest.mark.parametrize(
    ("name", "near"),
    [("tokn", "token"), ("port", ""), ("kens", ""), ("tokens", "token"), ("xtoken", "token"), ("", "")],
)
def test_the_nearest_name_has_the_same_first_letter_or_is_very_near(name: str, near: str) -> None:
    assert nearest(name, ["export", "token", "seed"]) == near
