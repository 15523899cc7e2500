"""Detection of encodings, lines that cannot be decoded, and text that was saved in a wrong encoding."""

import contextlib
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.reading.charset import detect_charset, detect_damage
from chatbot.corpus.reading.names import load_table
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import dropped, pairs_of, written

# Simplified and traditional chat, simplified couplets, and sentences by the charset that they were saved in.
SENTENCES: dict[str, list[str]] = json.loads(Path(__file__).with_name("sentences.json").read_text(encoding="utf-8"))
CHAT = load_table("charsets.yaml")["frequent"]["chinese"]
SIMPLIFIED, TRADITIONAL, COUPLETS = (SENTENCES.pop(name) for name in ("simplified", "traditional", "couplets"))


def dialogue(sentences: list[str], count: int) -> str:
    """This many lines of question, tab, answer."""
    many = sentences * 2
    return "".join(f"{many[i % 15]}\t{many[i % 15 + 1 + i // 15 % 14]}\n" for i in range(count))


@pytest.mark.parametrize("count", [1, 5, 50])
@pytest.mark.parametrize(
    ("sentences", "codec", "name"),
    [
        (SIMPLIFIED, "gbk", "GB18030"),
        (COUPLETS, "gbk", "GB18030"),
        (TRADITIONAL, "gbk", "GB18030"),
        (TRADITIONAL, "big5", "Big5"),
    ],
)
def test_gbk_and_big5_are_detected(tmp_path: Path, sentences: list[str], codec: str, name: str, count: int) -> None:
    text = dialogue(sentences, count)
    path = written(tmp_path, "a.tsv", text.encode(codec))
    pairs, report = pairs_of(path)
    assert report.charsets == [name]
    assert "".join(f"{question}\t{answer}\n" for question, answer in pairs) == text


@pytest.mark.parametrize(
    ("codec", "sentence"),
    [
        *((codec, each) for codec in SENTENCES for each in SENTENCES[codec]),
        *(("gb18030", each) for each in (*COUPLETS, *SIMPLIFIED, "好", "你好", "在吗", "雷隐隐", "C++难学")),
    ],
)
def test_a_single_sentence_is_decoded_or_asked_about(codec: str, sentence: str) -> None:
    content = sentence.encode(codec)
    with contextlib.suppress(UserError):
        assert content.decode(detect_charset(content)[0]) == sentence
        return
    with pytest.raises(
        UserError, match=r"a.txt: in (\w+( or )?){2,3}; name it with --encoding NAME, or save"
    ) as raised:
        detect_charset(content, "a.txt")
    assert any(line.endswith(f": {sentence}") for line in raised.value.details)


def test_most_single_sentences_are_decoded() -> None:
    known = []
    for sentence in (*COUPLETS, *SIMPLIFIED):
        with contextlib.suppress(UserError):
            known.append(detect_charset(sentence.encode("gb18030")))
    assert len(known) >= len(COUPLETS) + len(SIMPLIFIED) - 5


@given(
    st.text(st.sampled_from(CHAT.encode("gb2312", "ignore").decode("gb2312")), min_size=15).filter(
        lambda text: len({*text}) > 5  # the bytes of a few characters, such as 一, are valid UTF-8, too
    ),
    st.sampled_from(["", "\t", "\n", "abc ", "http://t.cn/a "]),
)
def test_any_frequent_characters_in_gbk_are_detected(text: str, between: str) -> None:
    assert detect_charset(between.join(text).encode("gbk")) == ("gb18030", "GB18030")


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(("ends", "inside"), [(0, 0), (0, 1), (1, 7), (1, 8), (2, 14), (2, 15), (4, 0)])
def test_utf_16_needs_line_ends_at_an_eighth_of_their_bytes(ends: int, inside: int, codec: str) -> None:
    """Without a byte order mark; 上 is 4E 0A."""
    content = ("a" + "上" * inside + "\n" * ends).encode(codec)
    assert (detect_charset(content)[0] == codec) == (ends > 0 and 8 * ends >= ends + inside)


@pytest.mark.parametrize(("codec", "name"), [("utf-8", "UTF-8"), ("gb18030", "GB18030"), ("big5", "Big5")])
def test_sample_may_end_inside_a_character(codec: str, name: str) -> None:
    content = dialogue(TRADITIONAL, 20).encode(codec)
    assert {detect_charset(content[:length])[1] for length in range(200, 220)} == {name}


def test_mostly_undecodable_file_is_an_error(tmp_path: Path) -> None:
    content = "早上好\t晚安\n".encode() * 20_000 + "早上好\t晚安\n".encode("gbk") * 30_000
    with pytest.raises(
        UserError, match=r"a.tsv: read as UTF-8, 30,000 of 50,000 lines cannot be used \(lines not UTF-8: 30,000"
    ):
        pairs_of(written(tmp_path, "a.tsv", content))


@pytest.mark.parametrize(("codec", "name"), [("gbk", "GB18030"), ("utf-8", ""), ("iso2022_jp", "ISO-2022-JP")])
def test_characters_far_below_english_lines_are_decoded(tmp_path: Path, codec: str, name: str) -> None:
    """The sample has none of them."""
    rows = [(f"this is question number {i} of many", f"and its answer {i}") for i in range(6500)]
    question, answer = ("のしつもんですか", "こたえです") if codec == "iso2022_jp" else ("个问题是什么", "这是回答")
    rows += [(f"{i}{question}", f"{answer}{i}") for i in range(2000)]
    content = "".join(f"{question}\t{answer}\n" for question, answer in rows).encode(codec)
    pairs, report = pairs_of(written(tmp_path, "a.tsv", content))
    assert pairs == rows
    assert report.charsets == (["UTF-8", name] if name else ["UTF-8"])


def test_undecodable_lines_far_below_are_counted(tmp_path: Path) -> None:
    content = (
        "".join(f"hello {i}\thi {i}\n" for i in range(20_000)).encode()
        + ("你好\t在的\n" * 9 + "在吗\t我在家里").encode("gbk")
        + b"\xff\n"
    )
    pairs, report = pairs_of(written(tmp_path, "a.tsv", content))
    assert pairs[-1] == ("你好", "在的")
    assert dropped(report) == {"lines not GB18030": 1}


CHARACTERS = sorted({*CHAT} - {*"，。？！"})
LINES = st.lists(st.text(CHARACTERS, min_size=4, max_size=12), min_size=2, max_size=8).map("\n".join)


@given(LINES)
def test_any_chinese_saved_from_latin_1_is_recognised(text: str) -> None:
    assert "opened as Latin-1" in detect_damage(text.encode().decode("latin-1"))
    assert detect_damage(text) == ""


@pytest.mark.parametrize("sentences", [SIMPLIFIED, COUPLETS, TRADITIONAL])
def test_chinese_saved_from_gbk_is_recognised(sentences: list[str]) -> None:
    text = dialogue(sentences, 30)
    assert "opened as GB18030" in detect_damage(text.encode().decode("gb18030", "replace"))
    assert "characters are lost" in detect_damage(text.encode("gbk").decode("utf-8", "replace"))
    assert detect_damage(text) == ""


def test_a_text_is_damaged_if_enough_of_its_lines_beyond_ascii_are() -> None:
    """Two lines in ASCII do not count for Latin-1; they do for characters that are lost."""
    ascii_lines = ["ok", "fine"]
    for bad, good in itertools.product(range(9), range(6)):
        latin = [*["晚安".encode().decode("latin-1")] * bad, *["晚安"] * good, *ascii_lines]
        assert ("opened as Latin-1" in detect_damage("\n".join(latin))) == (5 * bad >= 4 * (bad + good) > 0), (
            bad,
            good,
        )
        lost = [*["晚\ufffd"] * bad, *["晚安"] * good, *ascii_lines]
        assert ("characters are lost" in detect_damage("\n".join(lost))) == (2 * bad >= bad + good + 2), (bad, good)


def test_gbk_damage_needs_eight_mostly_frequent_characters() -> None:
    """Two characters of three bytes are three of two bytes."""
    for twos, rare in itertools.product(range(7), range(9)):
        saved = ("人人" * twos + "Я" * rare).encode().decode("gb18030")
        expected = 2 * twos + rare >= 8 and 5 * 2 * twos >= 3 * (2 * twos + rare)
        assert ("opened as GB18030" in detect_damage(saved)) == expected, (twos, rare)


@pytest.mark.parametrize("text", ["naïve\tcafé\n", "Ã\n", "你好 \ufffd\n在吗\n吃了吗\n", "联通\n", "ΑΒΓ\n"])
def test_other_texts_are_not_damaged(text: str) -> None:
    assert detect_damage(text) == ""
