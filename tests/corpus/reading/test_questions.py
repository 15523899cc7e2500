"""Lines that begin with the label of a question or an answer."""

from pathlib import Path

import pytest

from tests.corpus.reading.sample_files import conversations_of, dropped, written

CASES: dict[str, tuple[str, list[list[str]], dict[str, int]]] = {
    "English": (
        "Q: How are you?\nA: Fine.\nQ: Who are you?\nA: A bot.\n",
        [["How are you?", "Fine."], ["Who are you?", "A bot."]],
        {},
    ),
    "several answers, questions without one": (
        "问：怎么退货\n\n答：打开订单\n点退货\n\n问：多久到\n问：能开发票吗\n答：能。\n答：可以\n问：在吗\n",
        [["怎么退货", "打开订单，点退货"], ["能开发票吗", "能。"], ["能开发票吗", "可以"]],
        {"questions without an answer": 2},
    ),
    "answers on the same line": ("问：甲 答：乙\n问：丙\t答：丁\n", [["甲", "乙"], ["丙", "丁"]], {}),
    "a title, bullets and full-width labels": (
        "常见问题\n\n- \uff31：甲\n- \uff21：乙\n\n2. Q: c?\n   A:\td\n",
        [["甲", "乙"], ["c?", "d"]],
        {"lines before the first label or head": 1},
    ),
    "bold labels": ("**Q:** a?\n**A:** b\n", [["a?", "b"]], {}),
    "user and bot": (
        "用户: 你好\n机器人: 你好呀\n用户: 再见\n机器人: 再见！\n\nuser: 在吗\nbot: 在\n",
        [["你好", "你好呀", "再见", "再见！"], ["在吗", "在"]],
        {},
    ),
}


@pytest.mark.parametrize(("content", "expected", "counts"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_labels_begin_questions_and_answers(
    tmp_path: Path, content: str, expected: list[list[str]], counts: dict[str, int], line_end: str
) -> None:
    found, report = conversations_of(written(tmp_path, "a.txt", content.replace("\n", line_end)))
    assert found == expected
    assert report.formats == ["qa"]
    assert dropped(report) == counts
