"""The blind sheet: what a rater sees, what spreadsheets make of it, its count against a slow twin, and its sources."""

import codecs
import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import sheet as sheet_module
from benchmarks.sheet import COLUMNS, KEY, SHEET, check_lines, count_ratings, write_sheet
from chatbot.errors import UserError
from chatbot.evaluation.measures import Sample
from chatbot.inference.replier import Replier
from tests.benchmarks.running import benchmark
from tests.export.untrained import write_attempt

MESSAGES = ["你好", "吃了吗", "在干嘛", "晚安"]
REPLIES = {
    "people": ["你好呀", "吃了", "想你", "晚安"],
    "model": ["你好呀", "没吃", "@你", "晚安 "],
    "a.txt": ["嗯", "嗯", "=1+1", "好梦,\n明天见"],
}


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The rows of a sheet, with the explanation."""
    return [*csv.DictReader(io.StringIO((folder / SHEET).read_text(encoding="utf-8-sig"), newline=""))]


def rate(folder: Path, ratings: Mapping[str, tuple[str, str]]) -> None:
    """Fill in ratings by reply, as a person does."""
    rows = rows_of(folder)
    for row in rows:
        row["sensible"], row["specific"] = ratings.get(row["reply"].strip(), ("", ""))
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    (folder / SHEET).write_text(text.getvalue(), encoding="utf-8-sig", newline="")


def sources_of(folder: Path) -> dict[str, list[str]]:
    """The sources of each row in the key."""
    rows: dict[str, list[str]] = json.loads((folder / KEY).read_text(encoding="utf-8"))["rows"]
    return rows


def test_rater_sees_each_different_reply_once_and_no_source(tmp_path: Path) -> None:
    assert write_sheet(tmp_path, MESSAGES, REPLIES) == 2 + 3 + 3 + 2
    explanation, *rows = rows_of(tmp_path)
    assert explanation["id"] == explanation["sensible"] == ""
    assert "Specific: it is sensible" in explanation["message"]
    assert "合理" in explanation["reply"]
    assert [row["message"] for row in rows] == ["你好"] * 2 + ["吃了吗"] * 3 + ["在干嘛"] * 3 + ["晚安"] * 2
    shown = {"你好呀", "嗯", "吃了", "没吃", "想你", " @你", " =1+1", "晚安", "好梦, 明天见"}
    assert {row["reply"] for row in rows} == shown
    sheet = (tmp_path / SHEET).read_text(encoding="utf-8")
    assert not [source for source in REPLIES if source in sheet]
    key = sources_of(tmp_path)
    assert [*key] == [row["id"] for row in rows]
    of_replies = {(row["message"], row["reply"].strip()): key[row["id"]] for row in rows}
    assert of_replies["你好", "你好呀"] == of_replies["晚安", "晚安"] == ["people", "model"]
    assert of_replies["吃了吗", "嗯"] == ["a.txt"]


def test_order_does_not_reveal_sources(tmp_path: Path) -> None:
    replies = {name: [f"{name}{i}" for i in range(60)] for name in ("甲", "乙")}
    write_sheet(tmp_path, [f"问{i}" for i in range(60)], replies)
    first = [row["reply"][0] for row in rows_of(tmp_path)[1::2]]
    assert 15 < first.count("甲") < 45
    content = (tmp_path / SHEET).read_bytes()
    (tmp_path / "again").mkdir()
    write_sheet(tmp_path / "again", [f"问{i}" for i in range(60)], replies)
    assert (tmp_path / "again" / SHEET).read_bytes() == content


def test_a_reply_counts_for_all_its_sources(tmp_path: Path) -> None:
    """Rows that are not rated, or in one cell alone, do not count."""
    write_sheet(tmp_path, MESSAGES, REPLIES)
    rate(
        tmp_path, {"你好呀": ("1", "0"), "嗯": ("0", "0"), "晚安": ("1", "1"), "想你": ("1", ""), "没吃": (" 1", "1 ")}
    )
    ratings, unrated = count_ratings(tmp_path)
    assert unrated == 5
    names = ("replies", "sensible", "specific", "mean", "standard_error")
    assert ratings == {
        "people": pytest.approx(dict(zip(names, (2, 1, 0.5, 0.75, 0.25), strict=True))),
        "model": pytest.approx(dict(zip(names, (3, 1, 2 / 3, 5 / 6, 1 / 6), strict=True))),
        "a.txt": dict(zip(names, (2, 0, 0, 0, 0), strict=True)),
    }
    assert count_ratings(tmp_path, ["people", "model", "a.txt"]) == (ratings, unrated)
    rate(tmp_path, {"想你": ("1", "0")})
    ratings, _ = count_ratings(tmp_path)
    assert ratings["people"] == dict(zip(names, (1, 1, 0, 0.5, None), strict=True))
    assert ratings["model"] == dict(zip(names, (0, None, None, None, None), strict=True))


@pytest.mark.parametrize(("codec", "delimiter"), [("utf-8", ","), ("gb18030", ";"), ("utf-16", "\t")])
def test_sheets_saved_by_spreadsheets_are_counted(tmp_path: Path, codec: str, delimiter: str) -> None:
    """Sorted, with another charset, delimiter and line end."""
    write_sheet(tmp_path, MESSAGES, REPLIES)
    rate(tmp_path, {"你好呀": ("1", "0"), "嗯": ("0", "0")})
    expected = count_ratings(tmp_path)
    text = io.StringIO()
    rows = sorted(([*row.values()] for row in rows_of(tmp_path)), key=lambda row: row[2])
    csv.writer(text, delimiter=delimiter, lineterminator="\r\n").writerows([COLUMNS, *rows, [""] * 5])
    (tmp_path / SHEET).write_bytes(codecs.encode(text.getvalue(), codec))
    assert count_ratings(tmp_path) == expected


def test_invalid_sheets_are_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--compare a\.txt: replies in a file are for at most 131,072 pairs"):
        check_lines("a.txt", ("甲",) * 131_073, 131_073)  # more pairs are divided into shards, by their hashes
    sheet, key = tmp_path / SHEET, tmp_path / KEY
    write_sheet(tmp_path, MESSAGES, REPLIES)
    with pytest.raises(UserError, match=r"sheet\.csv: nothing is rated yet; write 0 or 1"):
        count_ratings(tmp_path)
    rate(tmp_path, {"想你": ("1", "0")})
    content = sheet.read_bytes()
    with pytest.raises(
        UserError, match=r"contains a sheet of people, model, a\.txt; count it without --compare, or use anoth"
    ):
        count_ratings(tmp_path, ["people", "model"])
    (row,) = [row["id"] for row in rows_of(tmp_path) if row["reply"] == "想你"]
    rate(tmp_path, {"想你": ("0", "1")})
    with pytest.raises(UserError, match=f"row {row} is specific but not sensible"):
        count_ratings(tmp_path)
    for value in ("2", "yes", "-1", "0.5", "１"):
        rate(tmp_path, {"想你": ("1", value)})
        with pytest.raises(UserError, match=f"row {row} has '{value}' as specific; write 0 or 1$"):
            count_ratings(tmp_path)
    sheet.write_bytes(content + [*content.splitlines(keepends=True)][-1] * 2)
    rate(tmp_path, {"想你": ("1", "0"), "晚安": ("1", "1"), "好梦, 明天见": ("1", "1")})
    with pytest.raises(UserError, match=r"row [a-z]{6}10 occurs twice; remove one$"):
        count_ratings(tmp_path)
    for text in (b"", b"id,message\n", b"\0\0", b'"', "编号,合理\n".encode()):
        sheet.write_bytes(text)
        with pytest.raises(
            UserError, match="not a table with the columns id, message, reply, sensible, specific; save it"
        ):
            count_ratings(tmp_path)
    sheet.unlink()
    with pytest.raises(UserError, match=r"sheet\.csv: cannot be read \(No such file"):
        count_ratings(tmp_path)
    for text in (b"", b"[1]", b'{"rows": 1, "sources": []}', b'{"rows": {"a": 1}, "sources": []}', b"\xff"):
        key.write_bytes(text)
        with pytest.raises(UserError, match=r"key\.json: missing or damaged; restore it"):
            count_ratings(tmp_path)


def test_key_of_another_sheet_is_an_error(tmp_path: Path) -> None:
    for name, replies in (("a", REPLIES), ("b", {**REPLIES, "people": ["啊"] * 4})):
        (tmp_path / name).mkdir()
        write_sheet(tmp_path / name, MESSAGES, replies)
        rate(tmp_path / name, {"嗯": ("0", "0")})
    (tmp_path / "a" / KEY).write_bytes((tmp_path / "b" / KEY).read_bytes())
    with pytest.raises(UserError, match=r"row '[a-z]{6}1' is not in key\.json, which belongs to another sheet"):
        count_ratings(tmp_path / "a")


def replies_naming(replier: Replier, samples: Sequence[Sample]) -> list[str]:
    """Stands for `reply`. The replies name the search and the questions."""
    return [f"{replier.decoding.beam_size} {replier.decoding.retrieve} {sample.question}" for sample in samples]


@pytest.fixture
def command(work_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command with flags. Returns its JSON and what it printed on standard error."""
    monkeypatch.setattr(sheet_module, "reply", replies_naming)

    def run(*flags: str) -> tuple[dict[str, Any], str]:
        capsys.readouterr()
        report = benchmark("sheet", *flags)
        return report, capsys.readouterr().err

    return run


TURNS = ["早上好", "你也早", "吃了吗", "还没有", "去吃面", "走起来"]


def test_command_writes_and_counts_a_sheet(command: Any) -> None:
    """Each source replies to the same questions, with the turns before them, of which one attempt reads none."""
    Path("talk.jsonl").write_text(json.dumps(TURNS) + "\n", encoding="utf-8")
    for attempt, history in (("one", 1), ("two", 0)):
        chosen: dict[str, Any] = {"data": ("talk.jsonl",), "history": history, "max_length": 50}
        write_attempt(Path("checkpoints", attempt), retrieves=attempt == "two", **chosen)
    Path("theirs.txt").write_text("甲\n乙\n丙\n丁\n戊\n", encoding="utf-8")
    names = ["people", "nearest", "model", "beam", "two", "checkpoints/two", "theirs.txt"]
    of_one = ["--attempt", "one", "--data", "talk.jsonl", "--beam-size", "3"]
    flags = [*of_one, "--sheet", "rated", "--compare", *names, "--number", "4"]
    written, error = command(*flags)
    assert (written["sheet"], written["messages"]) == ("rated", 4)
    assert "rated/sheet.csv" in error
    assert "Warning: talk.jsonl: this attempt was trained on it; the model may have memorised them" in error
    _, *rows = rows_of(Path("rated"))
    assert len(rows) == written["rows"]
    key = sources_of(Path("rated"))
    by_source = {n: {row["message"]: row["reply"] for row in rows if n in key[row["id"]]} for n in names}
    assert len(by_source["people"]) == 4
    questions = {TURNS[0]: TURNS[0], **{f"{TURNS[i - 1]} / {TURNS[i]}": TURNS[i] for i in range(1, 5)}}
    for message, answer in by_source["people"].items():
        question = questions[message]
        assert answer == TURNS[TURNS.index(question) + 1]
        assert by_source["nearest"][message] == answer  # the attempt was trained on these pairs
        assert by_source["beam"][message] == f"5 none {question}"
        assert by_source["model"][message] == by_source["two"][message] == f"3 auto {question}"
        assert by_source["theirs.txt"][message] == "甲乙丙丁戊"[TURNS.index(question)]
    assert by_source["checkpoints/two"] == by_source["two"]

    rate(Path("rated"), dict.fromkeys([*TURNS, *"甲乙丙丁戊"], ("1", "0")))
    for again in (flags, ["--sheet", "rated"]):
        counts, error = command(*again)
        expected = {"replies": 4, "sensible": 1.0, "specific": 0.0, "mean": 0.5, "standard_error": 0.0}
        assert counts["sources"]["people"] == counts["sources"]["theirs.txt"] == expected
        assert [*counts["sources"]] == names
        assert "rows without two ratings, not counted" in error
    with pytest.raises(UserError, match="--sheet rated: contains a sheet of people, nearest, model"):
        command(*flags[:-2], "more.txt")
    with pytest.raises(SystemExit):
        command("--sheet", "rated", "--n-best", "2")  # a source has one reply

    flags = [*of_one, "--sheet", "s", "--compare", "people", "theirs.txt"]
    for text, lines in (("甲\n", "1 line"), ("甲\n乙\n\n", "3 lines"), ("", "1 line")):
        Path("theirs.txt").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=f"^--compare theirs.txt: {lines} for 5 questions; use a file with one"):
            command(*flags)
    assert not Path("s/sheet.csv").exists()
    Path("theirs.txt").write_text("甲\r\n乙\r\n丙\r\n丁\r\n戊", encoding="utf-8")
    assert command(*flags)[0]["messages"] == 5  # of 70 that are wanted
    # Each attempt has a default search of its own.
    command("--attempt", "one", "--data", "talk.jsonl", "--sheet", "t", "--compare", "model", "two")
    key, rows = sources_of(Path("t")), rows_of(Path("t"))[1:]
    searches = {(source, *row["reply"].split()[:2]) for row in rows for source in key[row["id"]]}
    assert searches == {("model", "5", "auto"), ("two", "5", "30")}


def test_attempt_that_reads_other_pairs_is_an_error(command: Any) -> None:
    Path("pairs.tsv").write_text("你好\t你好呀\n吃了吗\t吃了\n在哪\thttp://a.cn/b\n", encoding="utf-8")
    for attempt, rule in (("one", "nfkc"), ("two", "urls")):
        write_attempt(Path("checkpoints", attempt), clean=(rule,))
    with pytest.raises(
        UserError, match=r"^--compare two: its cleaning leaves 2 pairs of --data, that of this attempt 3"
    ):
        command("--attempt", "one", "--data", "pairs.tsv", "--sheet", "s", "--compare", "two")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--sheet s --compare people", "--sheet s: contains no sheet to count; to write one, add --data FILE --comp"),
        ("--data x --sheet s", "--sheet s: contains no sheet to count; to write one, add --data FILE --compare SOURCE"),
        ("--data x --sheet s --compare peeple", "--compare peeple: unknown; give people, nearest"),
        ("--data x --sheet s --compare s", "--compare s: no such attempt in "),
        ("--data x --sheet s --compare people model people", "a source is given twice"),
        ("--data none.tsv --sheet s --compare people", "none.tsv: no such file"),
    ],
)
def test_wrong_flags_are_errors_before_anything_is_loaded(command: Any, line: str, message: str) -> None:
    attempt = Path("checkpoints/default/config.json")
    attempt.parent.mkdir(parents=True)
    attempt.write_text("{}")
    Path("s").mkdir()
    Path("x").write_text("你好\t你好呀\n", encoding="utf-8")
    with pytest.raises(UserError) as raised:
        command(*line.split())
    assert message in str(raised.value)
    assert [*Path("s").iterdir()] == []
