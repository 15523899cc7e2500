"""Words as jieba finds them, and back to the text."""

from collections.abc import Callable
from pathlib import Path

import jieba
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jieba import finalseg

from chatbot.corpus.text.cleaning import tidy
from chatbot.corpus.text.recognition import recognised
from chatbot.corpus.text.segmentation import segmentation
from chatbot.corpus.text.tokenizer import SPACE, text_of, tokenizer
from chatbot.errors import UserError

TEXTS = st.text(max_size=60) | st.text("a 1你好,。", max_size=60)
CHINESE = st.text("他来到了网易杭研大厦永和服装饰品有限公司我不喜欢小明硕士毕业于中国科学院a1.+#_%- ，！", max_size=40)


@pytest.fixture(scope="module")
def dictionary() -> jieba.Tokenizer:
    """jieba itself, with a word of the user's, one that is none."""
    loaded = jieba.Tokenizer()
    loaded.initialize()
    loaded.add_word("网易杭研", 3)
    loaded.add_word("小明硕士", 0)
    return loaded


@pytest.fixture(scope="module")
def cut(dictionary: jieba.Tokenizer) -> Callable[[str], list[str]]:
    """The same, faster."""
    return segmentation(dictionary)


def test_words_keep_the_space_before_them() -> None:
    words = tokenizer("jieba")
    assert words("我爱北京天安门") == ["我", "爱", "北京", "天安门"]
    assert words("I like 北京 a lot") == ["I", f"{SPACE}like", f"{SPACE}北京", f"{SPACE}a", f"{SPACE}lot"]


def test_characters() -> None:
    assert tokenizer("char")("我 爱a1") == ["我", f"{SPACE}爱", "a", "1"]


@pytest.mark.parametrize("name", ["jieba", "char"])
@given(TEXTS)
def test_joining_the_tokens_gives_the_text_back(name: str, text: str) -> None:
    assert text_of(tokenizer(name)(tidy(text))) == tidy(text)


@given(CHINESE | TEXTS)
def test_the_words_are_those_of_jieba(cut: Callable[[str], list[str]], dictionary: jieba.Tokenizer, text: str) -> None:
    assert cut(text) == dictionary.lcut(text)


def test_the_words_of_real_chat_are_those_of_jieba(
    cut: Callable[[str], list[str]], dictionary: jieba.Tokenizer, real_chat: Path
) -> None:
    for line in real_chat.read_text(encoding="utf-8").splitlines()[:2000]:
        assert cut(line) == dictionary.lcut(line)


@given(st.text("小明硕士毕业于网易杭研大厦龘a1.%-", min_size=1, max_size=20))
def test_words_of_no_dictionary_are_those_of_jieba(run: str) -> None:
    assert list(recognised(run)) == list(finalseg.cut(run))


def test_a_user_dictionary(tmp_path: Path) -> None:
    sentence = "小黄鸡机器人会聊天"
    assert "小黄鸡机器人" not in tokenizer("jieba")(sentence)
    path = tmp_path / "words.txt"
    path.write_text("\ufeff小黄鸡机器人 5 n\n会聊天\n\n", encoding="utf-8")
    assert tokenizer("jieba", str(path))(sentence) == ["小黄鸡机器人", "会聊天"]
    assert "小黄鸡机器人" not in tokenizer("jieba")(sentence)  # the other tokenizer is as it was


def test_a_dictionary_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.txt: dictionary cannot be read"):
        tokenizer("jieba", str(tmp_path / "none.txt"))
    path = tmp_path / "gbk.txt"
    path.write_bytes("小黄鸡\n".encode("gbk"))
    with pytest.raises(UserError, match="not a jieba dictionary in UTF-8"):
        tokenizer("jieba", str(path))


@pytest.mark.parametrize("cache", [None, b"", b"damaged", b"i\x01\x00\x00\x00"])
def test_without_jiebas_cache_the_words_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: bytes | None
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if cache is not None:
        (tmp_path / "jieba.cache").write_bytes(cache)
    assert tokenizer.__wrapped__("jieba")("我来到北京清华大学") == ["我", "来到", "北京", "清华大学"]
    assert len((tmp_path / "jieba.cache").read_bytes()) > 1e6  # and there is one for the next time
