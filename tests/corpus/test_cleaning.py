"""Examples of each rule, properties of all rules together, and corpora with spaces between Chinese words."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.attempts.files import LAST
from chatbot.attempts.opening import write_attempt
from chatbot.config.corpus import TEXT_RULES, CorpusSettings
from chatbot.corpus.cleaning import cleaner, is_segmented, tidy
from chatbot.corpus.files import training_files, without_word_spaces
from chatbot.corpus.tokenizer import text_of, tokens_of
from chatbot.errors import UserError
from chatbot.flags import replace
from chatbot.training.data import prepare
from tests.corpus import encoded
from tests.training.small_run import small_settings

# A rule, a text, and what the rule makes of it, a line each; where both are the same, the text has nothing to clean.
CLEANED = Path(__file__).with_name("cleaned.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(("rule", "text", "cleaned"), [json.loads(line) for line in CLEANED])
def test_rule_cleans_text(rule: str, text: str, cleaned: str) -> None:
    changed: Counter[str] = Counter()
    assert cleaner([rule], changed)(text) == cleaned
    assert changed == ({rule: 1} if tidy(text) != cleaned else {})
    assert cleaner([])(text) == tidy(text)  # without the rule


def test_rules_are_applied_in_their_own_order() -> None:
    """And then spaces are normalised."""
    flag_order, changed = ["punctuation", "nfkc"], Counter[str]()
    assert cleaner(flag_order, changed)("好！!") == "好!"
    assert changed == {"nfkc": 1, "punctuation": 1}
    assert cleaner([])(" 你好 \t世界\u3000！\r\n") == "你好 世界 ！"
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


CUT = "你 要 党员 转正 了 吗 ？\t没 呢 ， 还 要 等 三 个 月\n我 love you 你 知道 的 吧\t我 也 一样 爱 你 的 呀\n"
ONE_SIDE = "你 要 党员 转正 了 吗 ？\t没呢，还要等三个月。\n"
POEM = "床前明月光 疑是地上霜\t举头望明月 低头思故乡\n"
PHRASES = "今天 好累 不想动\t早点 休息 晚安 好梦\n"
KEYWORDS = "头痛 发烧 咳嗽 三天\t可能是感冒了，多喝水，早点休息。\n"


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        (CUT * 5, True),
        (ONE_SIDE * 5, True),
        ("一 行 一 个 字 的 语 料\t是 这 样 的 没 错 啊\n" * 3, True),
        (CUT, False),  # too little to tell
        (POEM * 9, False),
        (PHRASES * 9, False),
        (KEYWORDS * 9, False),
        ("好，我，知道，了，谢谢，你\t不，用，客气，再见，吧\n" * 9, False),
        ("你要党员转正了吗\t没呢还要等三个月\n" * 9 + CUT * 2, False),
        ("hello how are you\ti am fine\n" * 9, False),
    ],
)
def test_only_text_that_is_cut_into_words_is_detected(text: str, cut: bool) -> None:
    assert is_segmented(text.replace("\t", "\n")) is cut


@pytest.mark.parametrize(("clean", "expected"), [(("control",), ("control", "spaces")), (("none",), ("none",))])
def test_rule_is_added_for_cut_corpora(tmp_path: Path, clean: tuple[str, ...], expected: tuple[str, ...]) -> None:
    (tmp_path / "plain.tsv").write_text(POEM * 9)
    (tmp_path / "cut.tsv").write_bytes((CUT * 5).encode("gb18030"))
    settings = CorpusSettings(data=(str(tmp_path / "*.tsv"),), clean=clean, cache=str(tmp_path))
    joined = without_word_spaces(settings)
    assert joined.clean == expected
    assert (training_files(joined).key == training_files(settings).key) == (clean == expected)
    assert without_word_spaces(joined) == joined
    plain = CorpusSettings(data=(str(tmp_path / "plain.tsv"),), clean=clean)
    assert without_word_spaces(plain) == plain


def test_cut_corpus_is_trained_on_and_chatted_with_without_its_spaces(
    work_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the settings that the attempt keeps, also when the same command resumes it."""
    Path("cut.tsv").write_text(CUT * 5)
    given = small_settings(data=("cut.tsv",))
    data = prepare(given)
    assert "cut.tsv: the spaces between its Chinese words are removed, as in chat (--clean spaces)." in (
        capsys.readouterr().out.splitlines()
    )
    kept = replace(given, **data.chosen)
    assert text_of(tokens_of(kept.corpus)("我 love you 你 知道 的 吧")) == "我love you你知道的吧"
    write_attempt(kept, data.vocabulary, data.description)
    Path("checkpoints/default", LAST).touch()
    assert prepare(given).chosen["clean"] == kept.corpus.clean


@pytest.mark.parametrize("command", ["inspect", "encode"])
def test_commands_join_the_words_and_name_lines_of_the_dictionary_without_effect(
    work_dir: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    Path("cut.tsv").write_text(CUT * 5)
    Path("words.txt").write_text("iPhone 16\n", encoding="utf-8")
    assert encoded.data(command, "cut.tsv", "--dictionary", "words.txt") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("cut.tsv: the spaces between its Chinese words are removed")
    assert printed.count("words.txt: lines without effect: 1 of 1; ") == 1
