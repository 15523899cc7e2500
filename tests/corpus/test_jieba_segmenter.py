"""The segmenter gives the words of jieba, with and without a user dictionary."""

import itertools
import logging
import marshal
import re
from pathlib import Path

import jieba
import orjson
import pytest
import rjieba
from hypothesis import given
from hypothesis import strategies as st
from jieba import finalseg

from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_parts
from chatbot.corpus.tokenizer import Tokenizer, jieba_segmenter
from chatbot.errors import UserError

UTTERANCES = Path(__file__).with_name("utterances.txt").read_text(encoding="utf-8").splitlines()
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
USER_DICTIONARY = """\ufeff杭研大厦
王刚刚刚走 3
梓涵 20 nr
C-POP 5
a-b
6-7 1 x
GPT
中国 0
小明硕士 0
过过 0
的 1
在 5000000
龘 30
b 400
的确定 1000

笑死
New York 10 n
你好，世界 100
𠮷野家 50
梓涵 7
"""


@pytest.fixture(scope="module")
def user_dictionary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of the user dictionary."""
    path = tmp_path_factory.mktemp("dictionary") / "words.txt"
    path.write_text(USER_DICTIONARY, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def segmenters(user_dictionary: Path) -> list[tuple[Tokenizer, Tokenizer]]:
    """The tested segmenter and jieba itself, without and with the user dictionary.

    jieba keeps the words of frequency 0 for all dictionaries, and cuts at some characters whatever a dictionary says:
    words with those are taken out before.
    """
    jieba.setLogLevel(logging.WARNING)
    plain, loaded = jieba.Tokenizer(), jieba.Tokenizer()
    with user_dictionary.open("rb") as file:
        loaded.load_userdict(file)
    split_words, finalseg.Force_Split_Words = finalseg.Force_Split_Words, set()

    def user_words(text: str) -> list[str]:
        finalseg.Force_Split_Words = split_words
        try:
            parts = enumerate(re.split("(New York|你好，世界|𠮷野家)", text))
            return [word for n, part in parts for word in ([part] if n % 2 else loaded.lcut(part))]
        finally:
            finalseg.Force_Split_Words = set()

    return [(jieba_segmenter(), plain.lcut), (jieba_segmenter(str(user_dictionary)), user_words)]


@pytest.fixture(scope="module")
def real_utterances() -> list[str]:
    """The built-in corpus and, if present, the samples of real corpora next to the project."""
    utterances = [text for source in find_parts([]).training for pair in read(source, Report()) for text in pair[:2]]
    data = Path(__file__).parents[3] / "shared/data"
    for path in sorted(data.glob("*.tsv")):
        utterances += itertools.chain.from_iterable(map(str.split, path.read_text("utf-8").splitlines(), "\t"))
    for path in sorted(data.glob("*.jsonl")):
        utterances += itertools.chain.from_iterable(map(orjson.loads, path.read_bytes().splitlines()))
    return utterances


@pytest.mark.parametrize("text", UTTERANCES)
def test_utterance_has_the_words_of_jieba(segmenters: list[tuple[Tokenizer, Tokenizer]], text: str) -> None:
    for segment, reference in segmenters:
        assert segment(text) == reference(text)


def test_lines_are_segmented_independently(segmenters: list[tuple[Tokenizer, Tokenizer]]) -> None:
    for segment, _ in segmenters:
        assert segment("\n".join(UTTERANCES)) == [word for text in UTTERANCES for word in [*segment(text), "\n"]][:-1]


def test_user_dictionary_changes_words(segmenters: list[tuple[Tokenizer, Tokenizer]]) -> None:
    (plain, _), (user, _) = segmenters
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


def test_rjieba_has_the_words_of_jiebas_dictionary() -> None:
    reference = jieba.Tokenizer()
    reference.initialize()
    assert [word for word, frequency in reference.FREQ.items() if rjieba.has_word(word) != (frequency > 0)] == []


def test_known_difference_is_a_rounded_probability(segmenters: list[tuple[Tokenizer, Tokenizer]]) -> None:
    # When this fails, rjieba no longer rounds: remove the remark at the head of jieba_segmenter.py.
    segment, reference = segmenters[0]
    assert (segment("感动常在啊"), reference("感动常在啊")) == (["感动", "常在", "啊"], ["感动", "常", "在", "啊"])


def words_of(folder: Path, content: str | bytes, text: str) -> list[str]:
    """The words of a text with a dictionary of this content."""
    path = folder / "words.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return jieba_segmenter(str(path))(text)


def test_user_dictionary_adds_words_to_its_own_segmenter_only(tmp_path: Path) -> None:
    sentence = "小黄鸡机器人会聊天"
    before = jieba_segmenter()(sentence)
    assert "小黄鸡机器人" not in before
    words = words_of(tmp_path, "\ufeff小黄鸡机器人 5 n\n会聊天\n\n", sentence)
    assert words == ["小黄鸡机器人", "会聊天"]
    assert jieba_segmenter()(sentence) == before


# Words with characters at which jieba cuts whatever the dictionary says, one of them within another. A word is no part
# of a longer one in Latin script, and what has frequency 0 is no word.
CUT_BY_JIEBA = """\
糖类抗原19-9 9999 n
让·雷诺 2000 nr
让·雷诺德
*ST海鸥 2000 n
T/T付款 1
iPhone 15 2000 n
《山海谣》 2000 n
<NUM> 2000
a,b 0
"""


WHOLE = {
    "糖类抗原19-9偏高": "糖类抗原19-9|偏高",
    "你喜欢让·雷诺吗": "你|喜欢|让·雷诺|吗",
    "让·雷诺德和让·雷诺": "让·雷诺德|和|让·雷诺",
    "*ST海鸥今天涨了吗": "*ST海鸥|今天|涨|了|吗",
    "可以T/T付款吗": "可以|T/T付款|吗",
    "AT/T付款": "AT|/|T|付款",
    "iPhone 15还有货吗": "iPhone 15|还有|货|吗",
    "iPhone 15s": "iPhone| |15s",
    "《山海谣》是谁唱的": "《山海谣》|是|谁|唱|的",
    "我买了<NUM>块钱的菜": "我|买|了|<NUM>|块钱|的|菜",
    "a,b": "a|,|b",
    "": "",
}


def test_words_of_a_dictionary_are_whole_where_jieba_always_cuts(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text(CUT_BY_JIEBA, encoding="utf-8")
    segment = jieba_segmenter(str(path))
    assert {text: "|".join(segment(text)) for text in WHOLE} == WHOLE


def test_removed_words_are_split_by_their_dictionary_only(tmp_path: Path) -> None:
    words = jieba_segmenter()("小明硕士毕业")
    assert "小明" in words  # a word of the model, not of the dictionary
    assert words_of(tmp_path, "小明 0\n", "小明硕士毕业")[:2] == ["小", "明"]
    assert not finalseg.Force_Split_Words
    assert jieba_segmenter()("小明硕士毕业") == words


@pytest.mark.parametrize("codec", ["gbk", "big5", "utf-16"])
def test_encoding_of_a_dictionary_is_detected(tmp_path: Path, codec: str) -> None:
    content = "小明天不在 5 n\n就是喜歡你\n".replace("歡", "歡" if codec == "big5" else "欢").encode(codec)
    assert words_of(tmp_path, content, "小明天不在") == ["小明天不在"]


def test_jiebas_cache_in_the_temporary_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jieba.cache").write_bytes(marshal.dumps(({"你好天气": 10**6}, 10**6)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert words_of(tmp_path, "小黄鸡机器人\n", "你好天气") == ["你好", "天气"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jieba.cache", "words.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "小明\n小黄鸡\n天气\n".encode() + "大家好".encode("gbk"),
            "dictionary read as UTF-8, but line 4 is not; save it as UTF-8",
        ),
        (f"小黄鸡 {2**63}\n".encode(), "not a jieba dictionary in UTF-8: .*the frequencies add up to 9,223,"),
        (b"a 1" + b"0" * 400 + b"\nb\n", "not a jieba dictionary in UTF-8: .*int too large"),
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
