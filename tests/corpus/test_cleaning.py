"""Examples of each rule, and properties of all rules together."""

import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import TEXT_RULES
from chatbot.corpus.cleaning import cleaner, tidy
from chatbot.errors import UserError

WALES = "🏴\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f"


@pytest.mark.parametrize(
    ("rule", "text", "cleaned"),
    [
        ("markup", "<p class='a'>价格&lt;<b>100</b>元&nbsp;吗</p><br/>是", "价格<100元 吗 是"),
        ("markup", "看<a href='http://t.cn/a'>这里</a><!-- 注 -->&#65292;&#x597d;", "看这里 ，好"),
        ("markup", "&#0;&#xD800;&amp;lt;&nosuch; AT&T R&D;", "&lt;&nosuch; AT&T R&D;"),
        ("markup", "**打开**订单，点**退货**。", "打开订单，点退货。"),
        ("markup", "第一步。\\n第二步\\r\\n完", "第一步。 第二步 完"),
        ("markup", "they said_comma_ no", "they said, no"),
        ("markup", "1. 怎么退货", "怎么退货"),
        ("markup", "12) What is it?", "What is it?"),
        # None of these is markup.
        ("markup", "if a < b and c > d: x <- y", "if a < b and c > d: x <- y"),
        ("markup", "C++ vector<int> <unk> <s> </s> >_< <3 (^_^)", "C++ vector<int> <unk> <s> </s> >_< <3 (^_^)"),
        ("markup", "5 ** 2 = 25, 2**3**2, f(**a, **b), f**k", "5 ** 2 = 25, 2**3**2, f(**a, **b), f**k"),
        ("markup", "C:\\new\\n.txt \\neq \\nabla", "C:\\new\\n.txt \\neq \\nabla"),
        ("markup", "1.5折 1. FC Köln 2024年", "1.5折 1. FC Köln 2024年"),
        ("markup", "1. 打开订单 2. 点退货", "1. 打开订单 2. 点退货"),
        ("nfkc", "Ｈｉ！　１２３", "Hi! 123"),
        ("nfkc", "㈱ﬁ", "(株)fi"),
        ("control", "\ufeff你\u200b好\u00ad世\u2067\x00界\x9f。", "你好世 界 。"),
        ("control", "好\u200d的👨\u200d", "好的👨"),
        ("control", "❤️\u200d🔥👩🏽\u200d⚕️🙂\u200d↔️", "❤️\u200d🔥👩🏽\u200d⚕️🙂\u200d↔️"),
        ("control", f"{WALES}英\U000e0067格兰", f"{WALES}英格兰"),
        ("control", "👨\u200d👩\u200d👧", "👨\u200d👩\u200d👧"),
        ("spaces", "你 要 党员 转正 了 吗 ？", "你要党员转正了吗？"),
        ("spaces", "看 hello world 吧", "看hello world吧"),
        ("simplified", "請問頭髮乾了嗎", "请问头发干了吗"),
        ("urls", "看http://t.cn/Ab1?x=1#y这个", "看 这个"),
        ("urls", "去www.example.com吧", "去 吧"),
        ("urls", "没有网址。www", "没有网址。www"),
        ("names", "//@张三:说得好", "说得好"),
        ("names", "回复@李四-l:好的", "好的"),
        ("names", "@a @b 你们看", "你们看"),
        ("names", "@tom@bob@小李: 你好", "你好"),
        ("names", "写信给a@b.com吧", "写信给a@b.com吧"),
        ("names", "@张三你好啊", "@张三你好啊"),
        ("names", "看@张三你好啊 ", "看@张三你好啊"),
        ("names", "看这个 @张三", "看这个"),
        ("names", "@张三，你好啊", "你好啊"),
        ("names", "@张三！快来 @li_si-4 ", "！快来"),
        ("names", "回复@张三:谢谢//@李四：好//@王五//@小六:嗯", "谢谢 好 嗯"),
        ("names", "哈哈 回覆@张三 : 对", "哈哈 : 对"),
        ("punctuation", "真的！！！！？？", "真的！？"),
        ("punctuation", "嗯......好", "嗯...好"),
        ("punctuation", "哦………………", "哦……"),
        ("punctuation", "他——她", "他——她"),
        ("punctuation", "C++和__init__，std::map ==**||", "C++和__init__，std::map ==**||"),
        ("punctuation", "=====好++++！！~~~，，", "===好+++！~，"),
        ("punctuation", "哈哈哈哈", "哈哈哈哈"),
    ],
)
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
