"""CSV and TSV as programs write them; prose, logs and lists, which are no tables."""

import contextlib
import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.corpus.reading.sources import find_sources
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import Pairs, pairs_of, pairs_or_one_line, written

NO_TABLES = {
    "two greetings": "Well, hello\nSo, goodbye\n",
    "one comma in each line": "Well, hello there\nYes, I am fine\nNo, thank you\nOh, I see\nFine, thanks\n",
    "English prose": "It was late, and the rain fell.\nNobody came, so she waited, alone, by the door.\n"
    "Then, at last,\na knock. She rose, slowly,\nand opened. Nothing, no one.\nOnly the rain; the dark; the road.\n",
    "dialogue": '"Well, sir," he said, "I know."\n"You do, sir?" she asked.\nHe said, "Yes, I do."\n'
    '"Then, go," she said, "and hurry."\n',
    "Chinese prose": "从前有座山，山里有座庙。\n庙里有个老和尚，在讲故事。\n讲的是什么故事呢，没有人知道。\n",
    "Chinese prose with ASCII commas": "他走了很远,终于到了山脚下,天黑了。\n没有人,只有风。\n她等着。\n",
    "a poem": "床前明月光,疑是地上霜。\n举头望明月,低头思故乡。\n春眠不觉晓,处处闻啼鸟。\n夜来风雨声,花落知多少。\n",
    "utterances": "你好\n好的,谢谢\n在吗\n嗯\n那我们走吧,快点\n行,听你的,都可以\n哈哈\n",
    "a list of names": "Smith, John\nMiller, Anna\nWeber, Tom\n",
    "WhatsApp": "12/03/2024, 10:15 - Alice: Hello\n12/03/2024, 10:16 - Bob: Hi\n12/03/2024, 10:16 - Bob: you ok?\n",
    "WhatsApp with brackets": "[2024/3/12, 10:15:01] 小明: 你好\n[2024/3/12, 10:15:40] 小红: 在的\n",
    "a log": "2024-03-12 10:15:32,123 INFO started\n2024-03-12 10:15:33,007 INFO ready\n",
    "an access log": '127.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.0" 200 23\n' * 3,
    "subtitles": "1\n00:00:01,000 --> 00:00:02,000\nHello, you.\n\n2\n00:00:03,000 --> 00:00:04,000\nHi.\n",
    "C": "int a = 1;\nint b = 2;\nreturn a;\nfoo(a, b);\n",
    "C with tabs": "int main(void)\n{\n\tint a;\n\ta = f(1, 2);\n\treturn a;\n}\n",
    "Python": "import os, sys\n\ndef f(a, b):\n    return [a, b, 1]\n\n\nprint(f(1, 2))\n",
    "a style sheet": "color: red;\nmargin: 0;\npadding: 0 1px;\n",
    "a Markdown list": "- one, two\n- three\n- four, five, six\n",
    "numbers and words": "1,你好\n2,在吗\n3,好的\n4,再见\n",
    "times and words": "10:15,你好\n10:16,在吗\n下午3:20,好的\n",
    "dates after a header": "date\tmessage\n2024-03-12 10:15\t你好\n2024-03-12 10:16\t在吗\n",
    "speakers": "".join(f"{'小明' if i % 3 else '小红'}\t第{i}句话\n" for i in range(60)),
    "labels": "".join(f"第{i}句话,{i % 2}\n" for i in range(60)),
    "counts of words": "".join(f"{chr(0x4E00 + i)}\t{i * 37}\n" for i in range(60)),
    "IRC": "10:15 <alice> hello,bob\n10:16 <bob> hi,alice\n10:17 <alice> so,what\n",
    "lyrics": "[00:12.00]床前明月光,疑是地上霜\n[00:15.30]举头望明月,低头思故乡\n",
    "a chat with names": "张三: 你好,在吗\n李四: 在的,怎么了\n张三: 没事,就问问\n",
    "SQL": "INSERT INTO t VALUES ('a','b');\nINSERT INTO t VALUES ('c','d');\n",
    "JavaScript": "const a = [1,2];\nconst b = f(a,2);\nconst c = g(b,3);\n",
    "a label and a review": "label,review\n1,不错\n0,一般\n",
    "a chat of LINE": "[LINE] 聊天記錄\n\n2023/01/01（日）\n08:00\t小花\t新年好\n08:05\t大明\t早\n",
    "names and values": "name,value\ncolour,red\nsize,large\nshape,round\n",
    "a header without an answer": "text,label\n甲,一\n乙,二\n",
}


@pytest.mark.parametrize("content", NO_TABLES.values(), ids=NO_TABLES.keys())
def test_texts_that_are_no_tables_are_not_read_as_one(tmp_path: Path, content: str) -> None:
    path = written(tmp_path, "a.txt", content)
    assert "\n" not in str(pairs_or_one_line(path))
    report = Report()
    with contextlib.suppress(UserError):  # others are read in a format of their own
        list(read(find_sources([str(path)])[0], report))
    assert not report.pairs or not {"csv", "tsv"}.intersection(report.formats)


def test_columns_settle_a_doubt(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"first column has numbers, .* give --columns 1 2"):
        pairs_of(written(tmp_path, "a.csv", NO_TABLES["numbers and words"]))
    assert pairs_of(written(tmp_path, "a", "1,2\n4,5\n"), ("1", "2"))[0] == [("1", "2"), ("4", "5")]


TABLES: dict[str, tuple[str | bytes, Pairs]] = {
    "pipes": ("甲|乙,丁\n丙 | 丁\n", [("甲", "乙,丁"), ("丙 ", "丁")]),
    "a comma and a pipe in each line": ("甲,一|乙\n丙,一|丁\n", [("甲,一", "乙"), ("丙,一", "丁")]),
    "a semicolon and a comma in each line": (
        "Kaffee?;Gern, danke\nTee?;Nein, danke\n",
        [("Kaffee?", "Gern, danke"), ("Tee?", "Nein, danke")],
    ),
    "an index, numbers as names": (",0,1\n0,甲,乙\n1,丙,丁\n", [("甲", "乙"), ("丙", "丁")]),
    "the lines of couplets": ("上联,下联\n甲,乙\n", [("甲", "乙")]),
    "a Markdown table": ("| question | answer |\n|---|---|\n| 甲 | 乙 |\n", [("甲 ", "乙 ")]),
    "quotes around all cells, with spaces": ('"甲, 一", "乙"\n"丙", "丁, 二"\n', [("甲, 一", "乙"), ("丙", "丁, 二")]),
    "backslashes before quotes": (
        'q,a\n"he said \\"hi, you\\"","x"\n"y \\"z\\"",w\n',
        [('he said "hi, you"', "x"), ('y "z"', "w")],
    ),
    "a backslash that is text": (
        'q,a\nC:\\new,¯\\_(ツ)_/¯\n"x ""y""",z\n',
        [("C:\\new", "¯\\_(ツ)_/¯"), ('x "y"', "z")],
    ),
    "apostrophes": ("'tis so,it's\nit ain't,'no'\n", [("'tis so", "it's"), ("it ain't", "'no'")]),
    "BOM, separator line and CR LF": (
        '\ufeffsep=;\r\n"Frage";"Antwort"\r\n"a;b";c\r\n\r\nd;e\r\n',
        [("a;b", "c"), ("d", "e")],
    ),
    "a header with spaces": ("id, Question , Answer \n1, 甲, 乙\n", [("甲", "乙")]),
    "a context and a response": ("context,response\n甲,乙\n丙,丁\n", [("甲", "乙"), ("丙", "丁")]),
    "a text and its reply": ("text,reply\n甲,乙\n", [("甲", "乙")]),
    "the answer first": ("reply,text\n甲,乙\n", [("乙", "甲")]),
    "an index from pandas": (",question,answer\n0,甲,乙\n1,丙,丁\n", [("甲", "乙"), ("丙", "丁")]),
    "an index, unknown names": (",col_a,col_b\n0,甲,乙\n1,丙,丁\n", [("甲", "乙"), ("丙", "丁")]),
    "an index, no header": ("0\t甲\t乙\n1\t丙\t丁\n2\t戊\t己\n", [("甲", "乙"), ("丙", "丁"), ("戊", "己")]),
    "quoted TSV": (
        '"说 ""好"" 了"\t乙\n"两\n行"\t"一\t二"\n丙\t丁\n',
        [('说 "好" 了', "乙"), ("两\n行", "一\t二"), ("丙", "丁")],
    ),
    "quotes around all cells of TSV": ('"甲"\t"乙"\n"丙"\t"丁"\n', [("甲", "乙"), ("丙", "丁")]),
    "stray quotes in TSV": (
        'he said "hi\tno\n"what\tyes"\n"quoted"\tall right\n5" long\t"\n',
        [('he said "hi', "no"), ('"what', 'yes"'), ('"quoted"', "all right"), ('5" long', '"')],
    ),
    "few answers": (
        "".join(f"第{i}句话\t这是第{i % 2}个回答。\n" for i in range(60)),
        [(f"第{i}句话", f"这是第{i % 2}个回答。") for i in range(60)],
    ),
}


@pytest.mark.parametrize(("content", "expected"), TABLES.values(), ids=TABLES.keys())
def test_dialects_give_pairs(tmp_path: Path, content: str, expected: Pairs) -> None:
    assert pairs_of(written(tmp_path, "a.csv", content))[0] == expected


CELL = st.text("ab\"',;|\t\n 你好，。", min_size=1, max_size=8).filter(
    # With both, a line within the cell may look like a row of TSV.
    lambda cell: cell.strip() and not ("\t" in cell and "\n" in cell)
)
WORDS = st.text("你好吗吃了", min_size=1, max_size=5)
HEADERS = ("question", "answer")


@given(
    rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=12),
    separator=st.sampled_from(",;|\t"),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    ends=st.sampled_from(["\n", "\r\n"]),
    escaped=st.booleans(),
)
@example(rows=[('a"b', '"')], separator="\t", quoting=csv.QUOTE_MINIMAL, ends="\n", escaped=False)
@example(rows=[('"|;\n;', ";")], separator="|", quoting=csv.QUOTE_ALL, ends="\n", escaped=True)
@settings(deadline=None, max_examples=200)
def test_what_a_csv_writer_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: Pairs, separator: str, quoting: Any, ends: str, escaped: bool
) -> None:
    written_with: dict[str, Any] = {"delimiter": separator, "quoting": quoting, "lineterminator": ends}
    if escaped and separator != "\t":
        written_with |= {"doublequote": False, "escapechar": "\\"}
    buffer = io.StringIO(newline="")
    # Ten plain rows show the number of columns.
    csv.writer(buffer, **written_with).writerows([HEADERS, *[("你好", "在的")] * 10, *rows])
    path = written(tmp_path_factory.getbasetemp(), "written", buffer.getvalue())
    pairs, _ = pairs_of(path)
    stripped = [(question.strip(), answer.strip()) for question, answer in pairs]
    assert stripped[10:] == [(question.strip(), answer.strip()) for question, answer in rows]


PLAIN = st.text("ab\"', 你好，。", min_size=1, max_size=8).filter(
    lambda cell: cell.strip() and not (cell[0] == cell[-1] == '"')
)


@given(rows=st.lists(st.tuples(PLAIN, PLAIN), min_size=1, max_size=12))
@settings(deadline=None, max_examples=200)
def test_what_is_written_without_quotes_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: Pairs) -> None:
    content = "".join(f"{question}\t{answer}\n" for question, answer in [HEADERS, *rows])
    assert pairs_of(written(tmp_path_factory.getbasetemp(), "plain", content))[0] == rows


def test_quoted_tsv_with_a_damaged_row_stays_quoted(tmp_path: Path) -> None:
    rows = [f'"第{i}句 ""好"""\t答{i}\n' for i in range(100)]
    rows[50] = 'stray "quote\t答50\n'
    pairs, _ = pairs_of(written(tmp_path, "a", "".join(rows)))
    assert pairs[0] == ('第0句 "好"', "答0")
    assert len(pairs) == 100


@given(
    rows=st.lists(
        st.lists(
            st.sampled_from(["", "甲", '"', '""', '"a"', "\\", "'", "12", "10:15", " ", "问题", "sep="]), max_size=4
        ),
        max_size=12,
    ),
    separator=st.sampled_from([",", ";", "|", "\t", ", ", '","', "\t\t"]),
)
@settings(deadline=None, max_examples=300)
def test_any_rows_give_pairs_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], separator: str
) -> None:
    content = "\n".join(separator.join(row) for row in rows)
    pairs_or_one_line(written(tmp_path_factory.getbasetemp(), "rows", content))
