"""TSV and CSV: columns, headers, quotes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chatbot.errors import UserError
from tests.corpus.reading.sample_files import Pairs, dropped, pairs_of, written

CASES: dict[str, tuple[str, tuple[str, ...], Pairs, dict[str, int]]] = {
    "pairs": (
        "\ufeff你好\t你好呀\r\n\n没有\n一\t二\t三\n吃了吗\t吃了",
        (),
        [("你好", "你好呀"), ("吃了吗", "吃了")],
        {"lines without a tab": 1, "rows with too many columns": 1},
    ),
    "trailing tabs": ("你好\t你好呀\t\t\n甲\t乙\t\t\n", (), [("你好", "你好呀"), ("甲", "乙")], {}),
    "no quoting in TSV": ('"你\t好"呀\n', (), [('"你', '好"呀')], {}),
    "a header": ("Question\tANSWER\n甲\t乙\n", (), [("甲", "乙")], {}),
    "two equal cells, no header": ("a\ta\na\taa\n", (), [("a", "a"), ("a", "aa")], {}),
    "a Chinese header, answer first": ("答案,编号,问题\n乙,1,甲\n丁,2,丙\n", (), [("甲", "乙"), ("丙", "丁")], {}),
    "columns by number": (
        "1\t甲\t乙\n2\t丙\t丁\n3\n",
        ("3", "2"),
        [("乙", "甲"), ("丁", "丙")],
        {"lines without a tab": 1},
    ),
    "columns by name": (
        "id,frage,antwort\n1,甲,乙\n2\n",
        ("Frage", "antwort"),
        [("甲", "乙")],
        {"rows with too few columns": 1},
    ),
    "a short row below a header": (
        "id,question,answer\n1,甲,乙\n2\n",
        (),
        [("甲", "乙")],
        {"rows with too few columns": 1},
    ),
    "Alpaca, with input": (
        "instruction,input,output\n翻译,你好,hello\n介绍自己,,我是机器人\n",
        (),
        [("翻译\n你好", "hello"), ("介绍自己", "我是机器人")],
        {},
    ),
    "Dolly, with context": (
        "instruction\tcontext\tresponse\tcategory\n谁写的\t李白写了静夜思。\t李白\tqa\n",
        (),
        [("谁写的\n李白写了静夜思。", "李白")],
        {},
    ),
    "title and reply": ("qid,category,title,reply\n7,x,甲,乙\n", (), [("甲", "乙")], {}),
    "quotes": (
        '"你好,世界","他说""好"""\r\n"两\n行",乙\r\n丙, "丁,戊"\r\n',
        (),
        [("你好,世界", '他说"好"'), ("两\n行", "乙"), ("丙", "丁,戊")],
        {},
    ),
    "semicolons": ("甲;乙,乙\n丙;丁\n", (), [("甲", "乙,乙"), ("丙", "丁")], {}),
    "Excel's separator line": ("sep=;\n问;答\n甲;乙\n", (), [("甲", "乙")], {}),
    "an open quote": (
        '问题,答案\n"丙,丁\n戊,己\n"庚",辛\n壬,癸\n',
        (),
        [("戊", "己"), ("庚", "辛"), ("壬", "癸")],
        {"rows with a stray or unclosed quote": 1},
    ),
    "an open quote to the end": (
        '问题,答案\n丙,"丁\n戊,己\n',
        (),
        [("戊", "己")],
        {"rows with a stray or unclosed quote": 1},
    ),
    "too many columns": (
        "问题,答案\n丙,丁,戊\n己,庚\n辛,壬,\n",
        (),
        [("己", "庚"), ("辛", "壬")],
        {"rows with too many columns": 1},
    ),
    "text in brackets": ("[1] 甲\t乙\n{2} 丙\t丁\n", (), [("[1] 甲", "乙"), ("{2} 丙", "丁")], {}),
    "old Macintosh": ("甲\t乙\r丙\t丁\r", (), [("甲", "乙"), ("丙", "丁")], {}),
}


@pytest.mark.parametrize(("content", "columns", "expected", "counts"), CASES.values(), ids=CASES.keys())
def test_tables_give_pairs(
    tmp_path: Path, content: str, columns: tuple[str, ...], expected: Pairs, counts: dict[str, int]
) -> None:
    pairs, report = pairs_of(written(tmp_path, "a" if "\t" in content else "a.csv", content), columns)
    assert pairs == expected
    assert dropped(report) == counts
    assert report.formats == ["tsv" if "\t" in content else "csv"]


# Which cells a program encloses in quotes: those where it must, for Excel also those with a comma; texts; all.
QUOTED: dict[str, Callable[[str], bool]] = {
    "must": lambda cell: any(character in cell for character in '"\t\n'),
    "Excel": lambda cell: any(character in cell for character in '"\t\n,'),
    "texts": lambda cell: not cell.isdecimal(),
    "all": lambda cell: True,
}


@pytest.mark.parametrize("is_quoted", QUOTED.values(), ids=QUOTED.keys())
def test_quotes_in_tsv_are_those_of_a_program(tmp_path: Path, is_quoted: Callable[[str], bool]) -> None:
    rows = [("甲", "1"), ("丙,丁", "2"), ('他说"好"', "3"), ("两\n行", "4"), ("a\tb", "5"), ("己", "6")]
    quoted = [['"' + cell.replace('"', '""') + '"' if is_quoted(cell) else cell for cell in row] for row in rows]
    path = written(tmp_path, "a.tsv", "".join("\t".join(row) + "\n" for row in quoted))
    assert pairs_of(path, ("1", "2"))[0] == rows


@pytest.mark.parametrize("header", ["", "question,answer\n"])
@pytest.mark.parametrize("columns", [("2", "3"), ("id", "answer")])
def test_columns_that_a_table_of_two_lacks_are_an_error(tmp_path: Path, header: str, columns: tuple[str, str]) -> None:
    with pytest.raises(UserError, match=f"no columns {columns[0]} and {columns[1]}; give --columns and two of: 1 "):
        pairs_of(written(tmp_path, "a.csv", f"{header}甲,乙\n丙,丁\n"), columns)


def test_a_cell_may_have_a_million_characters(tmp_path: Path) -> None:
    """The limit of the csv module is 131,072."""
    long = "说明，" * 50_000
    path = written(tmp_path, "a.csv", f'question,answer\n丙,丁\n甲,"{long}\n{long}"\n')
    assert pairs_of(path)[0] == [("丙", "丁"), ("甲", f"{long}\n{long}")]
    path = written(tmp_path, "a.csv", f'question,answer\n丙,丁\n甲,"{long * 8}"\n戊,己\n')
    assert pairs_of(path)[1].lines() == [f"lines longer than 1,048,576 characters: 1 (first: {path}, line 3)"]


def test_a_header_in_the_middle_is_no_pair(tmp_path: Path) -> None:
    """As of several files that were joined."""
    for header, row in (("question,answer", "甲,乙"), ("dialog_id,speaker,text", "1,甲,乙")):
        other = row.replace("甲", "丙").replace("乙", "丁")
        path = written(tmp_path, "a.csv", "\n".join([header, row, other, header, row, other]))
        pairs, report = pairs_of(path)
        assert len(pairs) in (3, 4)
        assert all("text" not in pair and "answer" not in pair for pair in pairs)
        assert dropped(report) == {"repeated headers": 1}


def test_a_quote_that_begins_a_cell_of_messages_is_text(tmp_path: Path) -> None:
    rows = [f"2024-01-01 10:0{n}\t{'甲乙'[n % 2]}\t第{n}句" for n in range(6)]
    rows[2] = rows[2].replace("第", '"第')
    path = written(tmp_path, "a.tsv", "\n".join(["time\tsender\tmessage", *rows]))
    pairs, _ = pairs_of(path)
    assert [pair[0] for pair in pairs] == ["第0句", "第1句", '"第2句', "第3句", "第4句"]


def test_dropped_rows_are_reported_with_line_number(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", '问题,答案\n"两\n行",乙\n丙\n丁,戊,己\n"庚,辛\n壬,癸\n子,丑\n')
    _, report = pairs_of(path)
    assert sorted(report.lines()) == [
        f"rows with a stray or unclosed quote: 1 (first: {path}, line 6)",
        f"rows with too few columns: 1 (first: {path}, line 4)",
        f"rows with too many columns: 1 (first: {path}, line 5)",
    ]


@pytest.mark.parametrize("separator", [",", "\t"])
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            (),
            "3 columns, and no header names the question and the answer; give --columns and two of: 1 'id', 2 'frage'",
        ),
        (("frage", "reply"), "no columns frage and reply; give --columns and two of: 1 'id', 2 'frage'"),
        (("1", "4"), "no columns 1 and 4"),
        (("0", "1"), "by number from 1"),
        (("1", "1"), "give two"),
        (("1",), "give two"),
    ],
)
def test_invalid_columns_are_errors(tmp_path: Path, separator: str, columns: tuple[str, ...], message: str) -> None:
    content = "id,frage,reaktion\n1,甲,乙\n2,丙,丁\n".replace(",", separator)
    with pytest.raises(UserError) as error:
        pairs_of(written(tmp_path, "a", content), columns)
    assert message in str(error.value)


def test_unclosed_quote_in_a_long_file_drops_one_row(tmp_path: Path) -> None:
    rows = [f"问{i},答{i}" for i in range(50_000)]
    rows[100] = '问100,"答100'
    pairs, report = pairs_of(written(tmp_path, "a.csv", "\n".join(rows)))
    assert len(pairs) == 49_999
    assert dropped(report) == {"rows with a stray or unclosed quote": 1}
    assert report.dropped["rows with a stray or unclosed quote"].first.endswith("line 101")


def test_cells_that_are_all_empty_give_no_pairs(tmp_path: Path) -> None:
    assert pairs_of(written(tmp_path, "a.csv", ",\n,\n"), ("1", "2"), format="csv")[0] == []
    pairs, _ = pairs_of(written(tmp_path, "b.tsv", "\t乙\n"), ("1", "2"), format="tsv")
    assert pairs == [("", "乙")]  # which cleaning drops
