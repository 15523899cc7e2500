"""Tokens contain the spaces of the text, so that it can be restored; pairs that are held out are prepared alike."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.cleaning import tidy
from chatbot.corpus.tokenizer import SPACE, print_unused_words, text_of, tokenizer, without_pair_rules

TEXTS = st.text(max_size=60) | st.text("a 1-.你好,。", max_size=60)


def test_words_keep_the_space_before_them() -> None:
    tokenise = tokenizer("jieba")
    assert tokenise("我爱北京天安门") == ["我", "爱", "北京", "天安门"]
    assert tokenise("I like 北京 a lot") == ["I", f"{SPACE}like", f"{SPACE}北京", f"{SPACE}a", f"{SPACE}lot"]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("no , no", "▁no ▁, ▁no"),
        ("No!", "▁No !"),
        ("네, 네", "▁네 , ▁네"),
        ("OK啊", "OK 啊"),
        ("３ no", "３ ▁no"),
        ("!", "!"),
        ("ไทย", "ไ ท ย"),
        ("好\nno\nno", "好 \n ▁no \n ▁no"),
    ],
)
def test_the_first_word_is_the_same_token_as_elsewhere_where_spaces_part_words(text: str, tokens: str) -> None:
    assert tokenizer("jieba")(text) == tokens.split(" ")


def test_char_tokenizer_splits_characters() -> None:
    assert tokenizer("char")("我 爱a1") == ["我", f"{SPACE}爱", "a", "1"]


@pytest.mark.parametrize("name", ["jieba", "char"])
@given(TEXTS)
def test_joined_tokens_restore_the_text(name: str, text: str) -> None:
    assert text_of(tokenizer(name)(tidy(text))) == tidy(text)


def test_tokenizer_is_made_once_per_dictionary(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("小黄鸡机器人\n", encoding="utf-8")
    assert tokenizer("jieba") is tokenizer("jieba")
    assert tokenizer("jieba", str(path))("小黄鸡机器人") == ["小黄鸡机器人"]
    assert tokenizer("jieba")("小黄鸡机器人") != ["小黄鸡机器人"]
    assert tokenizer("jieba", str(path)) is tokenizer("jieba", str(path))
    path.write_text("机器人会聊天\n", encoding="utf-8")
    assert tokenizer("jieba", str(path))("机器人会聊天") == ["机器人会聊天"]


def test_a_word_with_a_space_is_one_token(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("iPhone 15 2000\n", encoding="utf-8")
    tokens = tokenizer("jieba", str(path))("the iPhone 15!")
    assert tokens == [f"{SPACE}the", f"{SPACE}iPhone{SPACE}15", "!"]
    assert text_of(tokens) == "the iPhone 15!"


# Each line without effect: the rest of a word is read as its frequency or tag, a rare word is cut, a tab is no space,
# and the rule "nfkc" changes a word. Those with an effect: a word that jieba cuts elsewhere, with a space and a
# frequency, that is removed, and one that jieba knows with another frequency. Nobody misreads the last line.
WITHOUT = ["iPhone 16", "hot dog", "上海市长 1", "词?5", "ＡＢ 3"]
WORDS = [
    "iPhone 16",
    "hot dog",
    "上海市长 1",
    "词\t5",
    "ＡＢ 3",
    "让·雷诺",
    "hot pot 1",
    "中国 0",
    "微信 9",
    "C-POP 5",
    "GPT 9 n",
]


def unused_words(tmp_path: Path, lines: list[str], name: str = "words.txt") -> None:
    """Print the lines without effect of a dictionary of these lines."""
    path = tmp_path / name
    path.write_text("\n".join(lines), encoding="utf-8")
    print_unused_words(CorpusSettings(clean=("nfkc",), dictionary=str(path)))


def test_lines_of_a_dictionary_without_effect_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unused_words(tmp_path, WORDS)
    remedy = "a word with a space needs a frequency, a rare word a higher one"
    assert capsys.readouterr().out == f"words.txt: lines without effect: 5 of 11; {remedy}: {', '.join(WITHOUT)}\n"
    unused_words(tmp_path, WORDS[5:])
    print_unused_words(CorpusSettings())
    assert not capsys.readouterr().out


def test_many_lines_without_effect_are_one_short_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unused_words(tmp_path, [f"{'very' * 20}{i} long" for i in range(2000)], f"{'dictionary' * 20}.txt")
    printed = capsys.readouterr().out
    assert ": 2,000 of 2,000; " in printed
    assert printed.endswith(", ...\n")
    assert len(printed) <= 200


DROPPING = CorpusSettings(
    clean=("nfkc", "control", "equal", "duplicates"),
    max_reply_frequency=3,
    block_list="blocked.txt",
)


def test_rules_that_drop_pairs_are_removed() -> None:
    kept = without_pair_rules(DROPPING)
    assert kept == CorpusSettings(clean=("nfkc", "control"))
    assert without_pair_rules(CorpusSettings(clean=("equal",))).clean == ("none",)


def test_text_of_questions_and_answers_is_prepared_in_the_same_way() -> None:
    settings = CorpusSettings(columns=("1", "3"), clean=("nfkc",), dictionary="words.txt", cache="elsewhere")
    assert without_pair_rules(settings) == settings
    characters = dataclasses.replace(settings, dictionary=None, tokenizer="char")
    assert without_pair_rules(characters) == characters
