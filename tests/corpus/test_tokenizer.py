"""Tokens restore the text, and the segmenter gives the words of jieba, with and without a user dictionary."""

import dataclasses
import itertools
import logging
import marshal
import re
from pathlib import Path
from unittest.mock import Mock

import jieba
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jieba import finalseg

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus import tokenizer as tokenizer_module
from chatbot.corpus.cleaning import tidy
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_parts
from chatbot.corpus.tokenizer import (
    SPACE,
    Tokenizer,
    jieba_segmenter,
    print_unused_words,
    text_of,
    tokenizer,
    without_pair_rules,
)
from chatbot.errors import UserError

TEXTS = st.text(max_size=60) | st.text("a 1-.你好,。", max_size=60)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("我爱北京天安门", "我 爱 北京 天安门"),
        ("I like 北京", "I ▁like ▁北京"),
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
    assert "".join(tokenizer("char")(text)) == tokens.replace(" ", "")


@pytest.mark.parametrize("name", ["jieba", "char"])
@given(TEXTS)
def test_joined_tokens_restore_the_text(name: str, text: str) -> None:
    assert text_of(tokenizer(name)(tidy(text))) == tidy(text)


def test_tokenizer_is_made_once_per_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "words.txt", Mock(side_effect=lambda dictionary: list)
    monkeypatch.setattr(tokenizer_module, "jieba_segmenter", made)
    for content in ("小黄鸡机器人\n", "机器人会聊天\n"):
        path.write_text(content, encoding="utf-8")
        assert tokenizer("jieba", str(path)) is tokenizer("jieba", str(path))
    assert made.call_count == 2


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


def test_lines_of_a_dictionary_without_effect_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one short line, if there are many."""

    def unused_words(lines: list[str], name: str = "words.txt") -> str:
        path = tmp_path / name
        path.write_text("\n".join(lines), encoding="utf-8")
        print_unused_words(CorpusSettings(clean=("nfkc",), dictionary=str(path)))
        return capsys.readouterr().out

    remedy = "a word with a space needs a frequency, a rare word a higher one"
    assert unused_words(WORDS) == f"words.txt: lines without effect: 5 of 11; {remedy}: {', '.join(WITHOUT)}\n"
    monkeypatch.setattr(tokenizer_module, "jieba_segmenter", lambda dictionary: lambda text: [text])
    assert unused_words(["让·雷诺"], "one.txt") == ""
    monkeypatch.setattr(tokenizer_module, "jieba_segmenter", lambda dictionary: list)
    printed = unused_words([f"{'very' * 20}{i} long" for i in range(2000)], f"{'dictionary' * 20}.txt")
    assert ": 2,000 of 2,000; " in printed
    assert printed.endswith(", ...\n")
    assert len(printed) <= 200


def test_rules_that_drop_pairs_are_removed() -> None:
    """Text is prepared as before."""
    text = CorpusSettings(columns=("1", "3"), clean=("nfkc", "control"), dictionary="words.txt", cache="elsewhere")
    dropping = dataclasses.replace(
        text, clean=("nfkc", "control", "equal", "duplicates"), max_reply_frequency=3, block_list="blocked.txt"
    )
    assert without_pair_rules(dropping) == without_pair_rules(text) == text
    assert without_pair_rules(CorpusSettings(clean=("equal",))).clean == ("none",)


HERE = Path(__file__).parent
UTTERANCES = (HERE / "utterances.txt").read_text(encoding="utf-8").splitlines()
# ASCII inside and outside words, Chinese inside and outside jieba's blocks, and separators of blocks. No single rare
# characters: repeated, they give ties of the model, which rounding decides.
PIECES = [
    *"abZ019+#&._%-+#&._%-的了是你我在，  \u9fd6䶮龘𠀀﨎Ｃ😀\r\n",
    "小明硕士毕业于",
    "中国科学院",
    "卡拉OK",
    "结婚的和尚未",
]
TRICKY = st.lists(st.sampled_from(PIECES), max_size=20).map("".join)
# A new word with and without a frequency, a tag, words that are removed, more and less frequent, of one character,
# of ASCII, of characters that no block has, and one line twice.
USER_DICTIONARY = HERE / "user_dictionary.txt"


@pytest.fixture(scope="module")
def segmenters() -> list[tuple[Tokenizer, Tokenizer]]:
    """The tested segmenter and jieba itself, without and with the user dictionary.

    jieba keeps the words of frequency 0 for all dictionaries, and cuts at some characters whatever a dictionary says:
    words with those are taken out before.
    """
    jieba.setLogLevel(logging.WARNING)
    plain, loaded = jieba.Tokenizer(), jieba.Tokenizer()
    with USER_DICTIONARY.open("rb") as file:
        loaded.load_userdict(file)
    split_words, finalseg.Force_Split_Words = finalseg.Force_Split_Words, set()

    def user_words(text: str) -> list[str]:
        finalseg.Force_Split_Words = split_words
        try:
            parts = enumerate(re.split("(New York|你好，世界|𠮷野家)", text))
            return [word for n, part in parts for word in ([part] if n % 2 else loaded.lcut(part))]
        finally:
            finalseg.Force_Split_Words = set()

    return [(jieba_segmenter(), plain.lcut), (jieba_segmenter(str(USER_DICTIONARY)), user_words)]


@pytest.fixture(scope="module")
def real_utterances() -> list[str]:
    """The built-in corpus and, if present, half of the samples of real corpora next to the project."""
    built_in = [text for source in find_parts([]).training for pair in read(source, Report()) for text in pair[:2]]
    data, utterances = Path(__file__).parents[3] / "shared/data", list[str]()
    for path in sorted(data.glob("*.tsv")):
        utterances += itertools.chain.from_iterable(map(str.split, path.read_text("utf-8").splitlines(), "\t"))
    for path in sorted(data.glob("*.jsonl")):
        utterances += itertools.chain.from_iterable(map(orjson.loads, path.read_bytes().splitlines()))
    return built_in + utterances[::2]


def test_utterance_has_the_words_of_jieba(segmenters: list[tuple[Tokenizer, Tokenizer]]) -> None:
    """Alone, and as one of many lines. The user dictionary changes the words of some."""
    (plain, _), (user, _) = segmenters
    for segment, reference in segmenters:
        words = {text: segment(text) for text in UTTERANCES}
        assert words == {text: reference(text) for text in UTTERANCES}
        assert segment("\n".join(UTTERANCES)) == [word for text in UTTERANCES for word in [*words[text], "\n"]][:-1]
    assert sum(plain(text) != user(text) for text in UTTERANCES) > 10


@given(TRICKY | st.text(max_size=40))
def test_any_text_has_the_words_of_jieba(segmenters: list[tuple[Tokenizer, Tokenizer]], text: str) -> None:
    (segment, reference), (user_segment, user_reference) = segmenters
    assert segment(text) == reference(text)
    if set(text) <= set("".join(PIECES)):  # ties of the model are possible elsewhere
        assert user_segment(text) == user_reference(text)


@pytest.mark.parametrize("number", [0, 1])
def test_at_most_one_real_utterance_in_50_000_differs(
    segmenters: list[tuple[Tokenizer, Tokenizer]], real_utterances: list[str], number: int
) -> None:
    segment, reference = segmenters[number]
    different = [text for text in real_utterances if segment(text) != reference(text)]
    assert len(different) <= 1 + len(real_utterances) // 50_000, different


def test_words_of_a_dictionary_are_whole_where_jieba_always_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word is no part of a longer one in Latin script, and what has frequency 0 is no word."""
    dictionary = str(HERE / "cut_by_jieba.txt")
    segment = jieba_segmenter(dictionary)
    assert segment("") == []
    for line in (HERE / "cut_by_jieba.tsv").read_text(encoding="utf-8").splitlines():
        text, words = line.split("\t")
        assert "|".join(segment(text)) == words
    monkeypatch.setattr(tokenizer_module, "jieba_segmenter", lambda dictionary: segment)
    tokens = tokenizer("jieba", dictionary)("the iPhone 15!")
    assert tokens == [f"{SPACE}the", f"{SPACE}iPhone{SPACE}15", "!"]
    assert text_of(tokens) == "the iPhone 15!"


def test_dictionary_is_that_of_its_own_segmenter_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of jieba's model is removed, the charset is detected, and what anybody may write is not used."""
    words = jieba_segmenter()("小明硕士毕业")
    assert "小明" in words
    (tmp_path / "jieba.cache").write_bytes(marshal.dumps(({"你好天气": 10**6}, 10**6)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "words.txt"
    path.write_bytes("小明 0\n就是喜欢你 5 n\n".encode("gbk"))
    segment = jieba_segmenter(str(path))
    assert segment("小明硕士毕业")[:2] == ["小", "明"]
    assert segment("就是喜欢你") == ["就是喜欢你"]
    assert segment("你好天气") == ["你好", "天气"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jieba.cache", "words.txt"]
    assert not finalseg.Force_Split_Words
    assert jieba_segmenter()("小明硕士毕业") == words


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "小明\n小黄鸡\n天气\n".encode() + "大家好".encode("gbk"),
            "dictionary read as UTF-8, but line 4 is not; save it as UTF-8",
        ),
        (f"小黄鸡 {2**63}\n".encode(), "not a jieba dictionary in UTF-8: .*the frequencies add up to 9,223,"),
        (None, "dictionary cannot be read"),
    ],
)
def test_invalid_dictionary_is_a_one_line_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"words\.txt: {message}") as error:
        jieba_segmenter(str(path))
    assert "\n" not in str(error.value)
