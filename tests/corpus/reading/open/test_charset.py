"""Detection of encodings, and lines that cannot be decoded."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.corpus.reading.open.charset import CHAT, detect_charset
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import dropped, pairs_of, written

SIMPLIFIED = [
    *("你最近在忙什么呢", "公司里事情多，天天加班", "周末一起去爬山怎么样", "好啊，几点出发", "早上八点在地铁口碰头"),
    *("这件衣服多少钱", "打完折三百二十块", "能不能再便宜一点", "已经是最低价啦", "我的电脑又死机了"),
    *("重启一下试试看", "外面下雨了记得带伞", "谢谢提醒", "哈哈哈哈", "晚饭想吃火锅还是烤肉"),
]
TRADITIONAL = [
    *("你最近在忙什麼呢", "公司裡事情多，天天加班", "週末一起去爬山怎麼樣", "好啊，幾點出發", "早上八點在捷運站碰頭"),
    *("這件衣服多少錢", "打完折三百二十塊", "能不能再便宜一點", "已經是最低價啦", "我的電腦又當機了"),
    *("重新開機試試看", "外面下雨了記得帶傘", "謝謝提醒", "哈哈哈哈", "晚餐想吃火鍋還是烤肉"),
]


COUPLETS = [
    *("晚风摇树树还挺", "晨露润花花更红", "窗含西岭千秋雪", "门泊东吴万里船", "枯藤老树昏鸦", "小桥流水人家"),
    *("沧海月明珠有泪", "蓝田日暖玉生烟", "大漠孤烟直", "长河落日圆", "明月松间照", "清泉石上流", "赤日对苍穹"),
    *("鼠去牛来辞旧岁", "龙飞凤舞庆明时"),
]
TRADITIONAL_COUPLETS = [
    *("晚風搖樹樹還挺", "晨露潤花花更紅", "窗含西嶺千秋雪", "門泊東吳萬里船", "枯藤老樹昏鴉", "小橋流水人家"),
    *("滄海月明珠有淚", "藍田日暖玉生煙", "大漠孤煙直", "長河落日圓", "明月松間照", "清泉石上流", "赤日對蒼穹"),
    *("鼠去牛來辭舊歲", "龍飛鳳舞慶明時"),
]


def dialogue(sentences: list[str], count: int) -> str:
    """This many lines of question, tab, answer."""
    many = sentences * 2
    return "".join(f"{many[i % 15]}\t{many[i % 15 + 1 + i // 15 % 14]}\n" for i in range(count))


@pytest.mark.parametrize("count", [1, 2, 5, 50, 500])
@pytest.mark.parametrize(
    ("sentences", "codec", "name"),
    [
        (SIMPLIFIED, "gbk", "GB18030"),
        (COUPLETS, "gbk", "GB18030"),
        (TRADITIONAL_COUPLETS, "gbk", "GB18030"),
        (TRADITIONAL, "big5", "Big5"),
        (TRADITIONAL_COUPLETS, "big5", "Big5"),
    ],
)
def test_gbk_and_big5_are_detected(tmp_path: Path, sentences: list[str], codec: str, name: str, count: int) -> None:
    text = dialogue(sentences, count)
    path = written(tmp_path, "a.tsv", text.encode(codec))
    pairs, report = pairs_of(path)
    assert report.charsets == [name]
    assert "".join(f"{question}\t{answer}\n" for question, answer in pairs) == text


@pytest.mark.parametrize(
    ("text", "codec", "name"),
    [
        ("你好\t你好呀\n", "utf-8", "UTF-8"),
        ("你好\t你好呀\n", "utf-8-sig", "UTF-8 with BOM"),
        ("hello\thi\n", "ascii", "UTF-8"),
        ("一上三\t你好呀\n", "utf-16", "UTF-16 LE"),
        ("一上三\t你好呀\n", "utf-16-le", "UTF-16 LE"),
        ("一上三\t你好呀\n", "utf-16-be", "UTF-16 BE"),
        ("一上三\t你好呀\n", "utf-32", "UTF-32 LE"),
        ("Привет, как дела?\tХорошо, спасибо\n", "cp1251", "cp1251"),
        ("Где находится метро\tПрямо и направо\n", "koi8_r", "koi8_r"),
        ("Ça va très bien?\tEt toi, où es-tu passé\n", "cp1252", "cp1252"),
        ("the\tthé\n", "cp1252", "cp1252"),  # a line may not end inside a character
        ("佢喺邊度呀\t佢喺屋企\n", "big5hkscs", "Big5-HKSCS"),
        ("Was möchten Sie\tEinen Kaffee und zwei Brötchen\n", "cp1252", "cp1252"),
        ("안녕하세요 만나서 정말 반갑습니다\t저도 반갑습니다 잘 부탁드려요\n", "euc_kr", "euc_kr"),
        ("주말에 영화 보러 갈래\t좋아 몇 시에 만날까\n", "cp949", "euc_kr"),
        ("こんにちは、元気ですか\tはい、とても元気です\n", "shift_jis", "shift_jis"),
        ("今日は何を食べましたか\tカレーライスを食べました\n", "euc_jp", "euc_jp"),
    ],
)
@pytest.mark.parametrize("count", [1, 5, 200])
def test_other_encodings_are_detected(tmp_path: Path, text: str, codec: str, name: str, count: int) -> None:
    path = written(tmp_path, "a.tsv", (text * count).encode(codec))
    pairs, report = pairs_of(path)
    assert report.charsets == [name]
    assert pairs == [tuple(text.rstrip("\n").split("\t"))] * count
    assert not report.dropped


SENTENCES = {
    "cp1250": ("Dzień dobry, chciałbym zamówić pizzę", "Köszönöm, jól vagyok, és ön?", "Řekněte mi něco o počasí"),
    "iso8859_2": ("Gdzie jest najbliższy kościół?", "Děkuji, mám se dobře"),
    "cp1252": ("Être ou ne pas être", "På svenska heter det så här", "¿Cómo estás?", "Mitä kuuluu? Hyvää", "garçon"),
    "cp1253": ("Καλημέρα σας", "Δεν ξέρω"),
    "cp1254": ("Teşekkür ederim, iyiyim", "Kaç yaşındasın?"),
    "cp1255": ("מה השעה עכשיו?", "אני לא יודע, תודה רבה"),
    "cp1256": ("كم الساعة الآن؟", "لا أعرف، شكرا جزيلا"),
    "cp874": ("กี่โมงแล้ว", "ราคาเท่าไหร่คะ"),
}


@pytest.mark.parametrize(("codec", "sentence"), [(codec, each) for codec in SENTENCES for each in SENTENCES[codec]])
def test_a_single_sentence_of_an_alphabet_is_detected(codec: str, sentence: str) -> None:
    assert sentence.encode(codec).decode(detect_charset(sentence.encode(codec))[0]) == sentence


@pytest.mark.parametrize("sentence", [*COUPLETS, *SIMPLIFIED, "好", "你好", "在吗", "雷隐隐", "C++难学"])
def test_a_single_short_line_of_gbk_is_detected(sentence: str) -> None:
    assert detect_charset(sentence.encode("gbk")) == ("gb18030", "GB18030")


@given(
    st.text(st.sampled_from(CHAT.encode("gb2312", "ignore").decode("gb2312")), min_size=15),
    st.sampled_from(["", "\t", "\n", "abc ", "http://t.cn/a "]),
)
def test_any_frequent_characters_in_gbk_are_detected(text: str, between: str) -> None:
    assert detect_charset(between.join(text).encode("gbk")) == ("gb18030", "GB18030")


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(("ends", "inside"), [(0, 0), (0, 1), (1, 7), (1, 8), (2, 14), (2, 15), (4, 0)])
def test_utf_16_is_told_by_an_eighth_of_the_bytes_of_line_ends(ends: int, inside: int, codec: str) -> None:
    """Without a byte order mark; 上 is 4E 0A."""
    content = ("a" + "上" * inside + "\n" * ends).encode(codec)
    assert (detect_charset(content)[0] == codec) == (ends > 0 and 8 * ends >= ends + inside)


@pytest.mark.parametrize(("codec", "name"), [("utf-8", "UTF-8"), ("gb18030", "GB18030"), ("big5", "Big5")])
def test_sample_may_end_inside_a_character(codec: str, name: str) -> None:
    content = dialogue(TRADITIONAL, 20).encode(codec)
    assert {detect_charset(content[:length])[1] for length in range(200, 220)} == {name}


def test_lines_in_another_encoding_are_counted_with_line_number(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "一\t二\n三\t四\n".encode() + "五\t六\n".encode("gbk"))
    pairs, report = pairs_of(path)
    assert pairs == [("一", "二"), ("三", "四")]
    assert report.lines() == [f"lines not UTF-8: 1 (first: {path}, line 3)"]


def test_mostly_undecodable_file_is_an_error(tmp_path: Path) -> None:
    content = "早上好\t晚安\n".encode() * 20_000 + "早上好\t晚安\n".encode("gbk") * 30_000
    with pytest.raises(
        UserError, match=r"a.tsv: read as UTF-8, 30,000 of 50,000 lines cannot be used \(lines not UTF-8: 30,000"
    ):
        pairs_of(written(tmp_path, "a.tsv", content))


def test_half_of_the_lines_may_be_undecodable(tmp_path: Path) -> None:
    pairs, report = pairs_of(
        written(tmp_path, "a.tsv", "早上好\t晚安\n".encode() * 2 + "早上好\t晚安\n".encode("gbk") * 2)
    )
    assert pairs == [("早上好", "晚安")] * 2
    assert dropped(report) == {"lines not UTF-8": 2}


def test_lines_with_nul_characters_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "一\t二\n三\t\0四\n五\t六\n")
    pairs, report = pairs_of(path)
    assert pairs == [("一", "二"), ("五", "六")]
    assert report.lines() == [f"lines with NUL characters: 1 (first: {path}, line 2)"]


def test_every_line_after_the_sample_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, "a.tsv", "".join(f"问{i}\t答{i}\n" for i in range(60_000)))
    pairs, report = pairs_of(path)
    assert pairs == [(f"问{i}", f"答{i}") for i in range(60_000)]
    assert dropped(report) == {}
