"""Any file gives pairs or an error of one line, in bounded memory; encodings that are given, and parallel files."""

import collections
import gzip
import hashlib
import itertools
import json
import tracemalloc
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatbot.config.corpus import FORMATS
from chatbot.corpus.reading import text_file
from chatbot.corpus.reading.containers import BEGINNING, SAMPLE
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import ReadOptions, Report
from chatbot.corpus.reading.sources import Source, find_parts
from chatbot.corpus.reading.text_file import FIRST_LINES, MAX_LINE, open_text_files
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import (
    COMPRESSORS,
    VALID,
    dropped,
    pairs_of,
    pairs_or_one_line,
    texts,
    written,
    zipped,
)
from tests.corpus.reading.wild_files import cases

NAMES = st.sampled_from(
    (
        *("question", "answer", "questions", "answers", "history", "context", "messages", "role", "content", "text"),
        *("from", "id", "parent_id", "replies", "prompt", "chosen", "mapping", "data", "columns", "qas", "patterns"),
        *("message", "current_node", "sender", "time", "chat", "internal", "visible", "senders", "senderID", "weflow"),
    )
)
TEXTS = st.sampled_from(("甲", "", "user", "assistant", "Human: a\nAssistant: b", "a __eou__ b", "[deleted]", "1"))
KEYS = NAMES | TEXTS.filter(lambda text: "\n" not in text)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(0, 3), st.just(1.5), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=5)),
    max_leaves=20,
)
MAPS = ("messages[].{speaker: from, text: text}", "{id: id, parent: parent_id, text: text}", "data")
CELLS = st.sampled_from(("", "甲", '"', '""', '"a"', "\\", "'", "12", "10:15", " ", "问题", "sep="))
SEPARATORS = st.sampled_from((",", ";", "|", "\t", ", ", '","', "\t\t"))
LINES = sorted(
    {line for name, case in cases().items() if name.endswith(".txt") for line in case.get("text", "").splitlines()[:12]}
)
CONTENTS = {
    "bytes": st.binary(max_size=300),
    "marks": st.text('[]{}":,;甲EM \t\r\n\\u-#', max_size=200),
    "values": st.lists(VALUES, max_size=4).map(lambda values: json.dumps(values, ensure_ascii=False)),
    "lines of values": st.lists(VALUES.map(json.dumps), max_size=4).map("\n".join),
    "rows": st.builds(
        lambda rows, separator: "\n".join(separator.join(row) for row in rows),
        st.lists(st.lists(CELLS, max_size=4), max_size=12),
        SEPARATORS,
    ),
    "lines": st.builds(
        lambda end, lines: end.join(lines),
        st.sampled_from(["\n", "\r\n", "\n\n"]),
        st.lists(st.sampled_from(LINES) | st.text(max_size=20), max_size=12),
    ),
}
OPTIONS: list[dict[str, Any]] = [
    *({} for _ in FORMATS),  # as often as formats are given
    *({"format": name} for name in FORMATS),
    *({"map": expression} for expression in MAPS),
    *({"columns": columns} for columns in (("1", "2"), ("question", "answer"))),
    *({"me": "甲"}, {"head": "{name}: "}),
]


@pytest.mark.parametrize("kind", CONTENTS)
@given(data=st.data(), options=st.sampled_from(OPTIONS))
def test_any_content_gives_pairs_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject, options: dict[str, Any]
) -> None:
    content = data.draw(CONTENTS[kind])
    content = content if isinstance(content, bytes) else content.encode("utf-8", "replace")
    pairs_or_one_line(written(tmp_path_factory.getbasetemp(), "content", content), **options)


@given(st.data(), st.sampled_from([*VALID.values()]), st.sampled_from([None, *COMPRESSORS]))
def test_mutated_files_give_pairs_or_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, text: str, compression: str | None
) -> None:
    content = bytearray(COMPRESSORS[compression](text.encode()) if compression else text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = min(len(content), start + data.draw(st.integers(1, 20)))
        mutation = data.draw(st.sampled_from(["cut", "delete", "duplicate", "flip", "insert"]))
        if mutation == "cut":
            del content[start:]
        elif mutation == "delete":
            del content[start:end]
        elif mutation == "duplicate":
            content[end:end] = content[start:end] * data.draw(st.integers(1, 50))
        elif mutation == "flip":
            content[start:end] = bytes(byte ^ data.draw(st.integers(1, 255)) for byte in content[start:end])
        else:
            content[start:start] = data.draw(st.binary(max_size=8))
    pairs_or_one_line(written(tmp_path_factory.getbasetemp(), "mutated", bytes(content)))


def test_line_of_50_megabytes_is_skipped_in_bounded_memory(tmp_path: Path) -> None:
    path = written(tmp_path, "a", "甲\t乙\n" + "x" * 50_000_000 + "\n丙\t丁\n" + "y" * MAX_LINE + "\n戊\t己\n")
    tracemalloc.start()
    try:
        pairs, report = pairs_of(path)
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()
    assert pairs == [("甲", "乙"), ("丙", "丁"), ("戊", "己")]
    assert report.dropped["lines longer than 1,048,576 characters"].first == f"{path}, line 2"
    assert dropped(report) == {"lines longer than 1,048,576 characters": 1, "lines without a tab": 1}


def test_pairs_are_read_lazily_and_file_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[IO[bytes]] = []
    original = Path.open

    def recorded_open(path: Path, mode: str, buffering: int) -> IO[bytes]:
        opened.append(original(path, mode, buffering))
        return opened[-1]

    path = written(tmp_path, "a", "甲\t乙\n" * 1_000_000)
    monkeypatch.setattr(Path, "open", recorded_open)
    report = Report()
    pairs = read(Source("a", (path,), "file"), report)
    collections.deque(itertools.islice(pairs, BEGINNING // 4), maxlen=0)
    assert report.read_bytes < path.stat().st_size / 2
    pairs.close()
    assert len(opened) == 2  # for its beginning, and for what is beyond
    assert all(file.closed for file in opened)


def test_file_that_cannot_be_opened_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = written(tmp_path, "a.tsv", "甲\t乙\n")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"a.tsv: cannot be read \(Permission denied\)"):
        list(read(Source("a.tsv", (path,), "file"), Report()))


def test_given_encoding_and_format_are_those_of_compressed_and_parallel_files(tmp_path: Path) -> None:
    options = {"charset": "cp037", "format": "csv"}
    for compress in (bytes, *COMPRESSORS.values()):
        pairs, report = pairs_of(written(tmp_path, "a", compress("well, hello\noh, hi\n".encode("cp037"))), **options)
        assert pairs == [("well", "hello"), ("oh", "hi")]
        assert (report.charsets, report.formats) == (["cp037"], ["csv"])
    files = [str(written(tmp_path, name, text.encode("cp037"))) for name, text in (("q", "a\nb"), ("a", "c\nd"))]
    (source,) = find_parts([], *files).training
    assert texts(read(source, Report(), ReadOptions(charset="cp037"))) == [("a", "c"), ("b", "d")]


@pytest.mark.parametrize(
    ("content", "first_lines"),
    [
        ("a\nb", ["a\n", "b\n"]),
        ("a\n\n", ["a\n", "\n"]),
        ("a\n" * FIRST_LINES + "b", ["a\n"] * FIRST_LINES),
        # The sample ends inside a line, which counts only if there is no other.
        ("a\n" + "b" * SAMPLE, ["a\n"]),
        ("b" * (SAMPLE + 1), ["b" * SAMPLE + "\n"]),
    ],
    ids=["no line end", "a blank line", "many lines", "a long line", "only a long line"],
)
def test_first_lines_are_complete(tmp_path: Path, content: str, first_lines: list[str]) -> None:
    (text,) = open_text_files(written(tmp_path, "a", content), Report())
    assert text.first_lines == first_lines


def test_parallel_files_may_differ_in_encoding_and_compression(tmp_path: Path) -> None:
    questions = written(tmp_path, "q.gz", gzip.compress("你好吗，你在做什么\n\n\n好的，我们走吧\n".encode("gbk")))
    answers = written(tmp_path, "a", "我很好\r\nXX\r\n丙\r\n再见\r\n".encode().replace(b"XX", b"\xff"))
    (source,) = find_parts([], str(questions), str(answers)).training
    report = Report()
    assert texts(read(source, report)) == [("你好吗，你在做什么", "我很好"), ("", "丙"), ("好的，我们走吧", "再见")]
    assert (report.formats, report.charsets) == (["parallel"], ["GB18030", "UTF-8"])
    assert dropped(report) == {"lines not UTF-8": 1}  # in both files
    assert report.read_bytes == questions.stat().st_size + answers.stat().st_size


@pytest.mark.parametrize(
    ("questions", "answers", "message"),
    [
        ("1\n2\n3\n", "1\n2\n", "q has 3 lines and .*a has 2; "),
        ("1\n2\n", "1\n2\n\n", "q has 2 lines and .*a has 3; "),
        ("", "1\n", "q has 0 lines and .*a has 1; "),
        (zipped({"a": "甲\n", "b": "乙\n"}), "丙\n", "q: a: the archive contains more than one file"),
        ("早上好\n你在做什么\n".encode().decode("latin-1"), "1\n2\n", "q: .*opened as Latin-1 and saved again"),
    ],
)
def test_parallel_files_that_do_not_fit_are_errors(
    tmp_path: Path, questions: str | bytes, answers: str, message: str
) -> None:
    paths = [written(tmp_path, "q", questions), written(tmp_path, "a", answers)]
    (source,) = find_parts([], *map(str, paths)).training
    with pytest.raises(UserError, match=message):
        list(read(source, Report()))


def test_large_file_that_must_be_read_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "MAX_CHARACTERS", 2**20)
    (tmp_path / "a.yaml").write_text("- [a, b]\n" + "#" * 2**20)
    with pytest.raises(UserError, match=r"more than 1 MiB of YAML; give JSON Lines or TSV"):
        pairs_of(tmp_path / "a.yaml")


def test_built_in_corpus_has_552_pairs() -> None:
    report = Report()
    (source,) = find_parts([]).training
    pairs = texts(read(source, report))
    # The pairs that yaml.safe_load gives, in their order.
    digest = hashlib.sha256(json.dumps(pairs, ensure_ascii=False).encode()).hexdigest()
    assert (len(pairs), digest[:16]) == (552, "e973df32378e84d3")
    assert (report.pairs, report.formats, report.charsets, report.dropped) == (552, ["chatterbot"], ["UTF-8"], {})
    assert report.read_bytes == sum(path.stat().st_size for path in source.paths)
