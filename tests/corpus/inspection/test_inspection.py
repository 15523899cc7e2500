"""The inspection report: what is measured, against a slow loop; warnings; that nothing is changed on disk."""

import json
import shlex
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chatbot.config.corpus import CorpusSettings
from chatbot.config.stored import train_settings
from chatbot.corpus.inspection.measurements import Measurements, measure
from chatbot.corpus.inspection.report import histogram, report_lines, warnings
from chatbot.corpus.training_set import training_files
from tests.commands import run

PAIRS = [
    ("你好", "你好呀"),
    ("你好！", "你好呀！！"),
    ("吃了吗", "呵呵"),
    ("去哪里", "呵呵"),
    ("去哪里", "呵呵"),
    ("同", "同"),
]


def written(path: Path, pairs: list[tuple[str, str]]) -> str:
    """A .tsv of these pairs."""
    path.write_text("".join(f"{q}\t{a}\n" for q, a in pairs), encoding="utf-8")
    return str(path)


def measured(tmp_path: Path, pairs: list[tuple[str, str]], **changes: Any) -> Measurements:
    """The measurements of these pairs."""
    data = written(tmp_path / "pairs.tsv", pairs)
    settings = CorpusSettings(data=(data,), cache=str(tmp_path / "cache"), **changes)
    return measure(training_files(settings), settings)


def test_measurements(tmp_path: Path) -> None:
    found = measured(tmp_path, PAIRS, tokenizer="char")
    (file,) = found.files
    assert (file.report.pairs, file.kept, found.pairs) == (6, 4, 4)
    assert found.samples == PAIRS[:3]
    assert found.lengths.tolist() == [[2, 4], [3, 6], [3, 3], [3, 3]]
    assert found.tokens == found.characters == len(set("你好呀！吃了吗呵去哪里"))
    assert set(found.coverage.values()) == {1.0}
    assert found.top_replies[0] == ("呵呵", 2)
    assert found.top_share == 1.0
    assert found.near_duplicates == 1
    assert (found.max_length, found.vocabulary_size) == (6, 4000)


def test_coverage_is_the_share_of_tokens_in_a_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chatbot.corpus.inspection.measurements.VOCABULARY_SIZES", (20, 21, 22))
    pairs = [("天安门", "北京"), ("天安门", "上海"), ("上海", "北京"), ("北京", "天安门 上海"), ("我", "上海 北京")]
    found = measured(tmp_path, pairs)
    counts = Counter(word.strip("▁") for pair in pairs for side in pair for word in side.split())
    total = sum(counts.values())
    specials_and_characters = 5 + len(set("天安门北京上海我▁"))
    for size, share in found.coverage.items():
        # A word after a space is another token; each occurs once here, and so is in no vocabulary.
        tokens = Counter({"天安门": 3, "北京": 3, "上海": 3})
        words = sum(count for _, count in tokens.most_common(max(0, size - specials_and_characters)))
        assert share == pytest.approx((counts["我"] + words) / total)


def test_chunks_and_processes_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"问题{i % 90}", f"回答{i % 7}") for i in range(300)]
    one = measured(tmp_path, pairs)
    monkeypatch.setattr("chatbot.corpus.encoding.tokenised.PAIRS_PER_CHUNK", 32)
    monkeypatch.setattr("chatbot.corpus.inspection.measurements.SERIAL_CHUNKS", 0)
    monkeypatch.setattr("chatbot.corpus.encoding.workers.cores", lambda: 2)
    shutil.rmtree(tmp_path / "cache")
    assert report_lines(measured(tmp_path, pairs), CorpusSettings()) == report_lines(one, CorpusSettings())


def test_warnings_name_the_remedy(tmp_path: Path) -> None:
    lines = "\n".join(warnings(measured(tmp_path, [*PAIRS, ("", "空"), ("空", "")]), CorpusSettings()))
    assert "50% left out, mostly pairs with an empty side" in lines
    assert "only 4 pairs" in lines
    assert "25% of the pairs are near duplicates" in lines
    assert "--clean control equal duplicates nfkc punctuation" in lines
    assert "--max-reply-frequency" not in lines  # no reply is that frequent


def test_following_a_warning_silences_it(tmp_path: Path) -> None:
    pairs = [(f"问题{i}", "呵呵" if i % 2 else f"答案{i}") for i in range(2000)]
    assert "50% of all replies are the same 10" in warnings(measured(tmp_path, pairs), CorpusSettings())[0]
    capped = CorpusSettings(max_reply_frequency=10)
    assert warnings(measured(tmp_path, pairs, max_reply_frequency=10), capped) == []


def test_spaces_between_words_are_a_warning(tmp_path: Path) -> None:
    pairs = [(f"你 要 党员 转正 了 吗 {i}", f"没 呢 {i}") for i in range(2000)]
    (warning,) = warnings(measured(tmp_path, pairs), CorpusSettings())
    assert "follow a space" in warning
    assert warning.endswith("--clean control equal duplicates spaces")
    rules = ("control", "equal", "duplicates", "spaces")
    assert warnings(measured(tmp_path, pairs, clean=rules), CorpusSettings(clean=rules)) == []


def test_the_suggested_command_is_one(tmp_path: Path) -> None:
    settings = CorpusSettings(data=("my pairs.tsv", "b.tsv"), clean=("urls",), columns=("2", "3"))
    lines = report_lines(measured(tmp_path, PAIRS), settings)
    (suggested,) = [line.removeprefix("Suggested: python train.py ") for line in lines if line.startswith("Suggested")]
    chosen = train_settings(shlex.split(suggested))
    assert chosen.corpus == settings
    assert "Longer than train.py's default --max-length 50: 0 pairs, which it drops." in lines


def test_a_healthy_corpus_has_no_warnings(chat_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = CorpusSettings(data=(str(chat_file),), cache=str(tmp_path))
    found = measure(training_files(settings), settings)
    assert found.pairs == 200
    assert found.top_replies[0] == ("好的", 3)
    assert (found.max_length, found.vocabulary_size, found.near_duplicates) == (24, 4000, 0)
    (warning,) = warnings(found, settings)
    assert warning.startswith("only 200 pairs")
    monkeypatch.setattr("chatbot.corpus.inspection.report.FEW_PAIRS", 200)
    assert warnings(found, settings) == []


def test_histogram() -> None:
    rows = histogram(np.array([1] * 50 + [2] * 49 + [40]))
    assert [row.split()[0] for row in rows[:2]] == ["1", "2"]
    assert rows[0].endswith("50.0%")
    assert rows[0].count("█") == 40
    assert rows[1].count("█") == 39
    assert rows[-1].split()[0] == "13+"
    assert histogram(np.array([3]))[-1].count("█") == 40


def test_the_command_ends_with_one_json_object_a_file_and_changes_nothing(workplace: Path) -> None:
    written(workplace / "a.tsv", PAIRS)
    (workplace / "b.conv").write_bytes("E\nM 你好\nM 你好呀\nM 再见\n".encode("gb18030"))
    before = sorted(workplace.rglob("*"))
    done = run("chatbot.corpus", "inspect", "a.tsv", "b.conv", "--json")
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(workplace.rglob("*")) == before
    lines = done.stdout.decode().splitlines()
    assert [json.loads(line) for line in lines[-2:]] == [
        {
            "file": "a.tsv",
            "format": "tsv",
            "encoding": "UTF-8",
            "pairs": 6,
            "kept": 4,
            "dropped": {"pairs whose answer equals the question": 1, "duplicate pairs": 1},
        },
        {
            "file": "b.conv",
            "format": "conv",
            "encoding": "GB18030",
            "pairs": 2,
            "kept": 1,
            "dropped": {"duplicate pairs": 1},
        },
    ]


def test_warnings_fail_only_when_asked(workplace: Path) -> None:
    written(workplace / "a.tsv", PAIRS)
    codes = [run("chatbot.corpus", "inspect", "a.tsv", *flags).returncode for flags in ([], ["--fail-on-warnings"])]
    assert codes == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "none.tsv"], "none.tsv: no such file"),
        (["inspect", "empty.tsv"], "empty.tsv: no question-answer pairs: the file is empty"),
        (["inspect", "a.tsv", "--clean", "soap"], "soap"),
        (["inspect", "a.tsv", "--clean", "none", "urls"], "none excludes all other values"),
        (["inspect", "a.tsv", "--columns", "1"], "--columns: expected 2"),
        (["inspect", "a.tsv", "--dictionary", "none.txt"], "none.txt"),
        (
            ["encode", "a.tsv", "--tokenizer", "char", "--dictionary", "a.tsv"],
            "--tokenizer char has none; use --tokenizer jieba",
        ),
        (["wash", "a.tsv"], "wash: no such command"),
    ],
)
def test_bad_input_is_one_line(workplace: Path, arguments: list[str], message: str) -> None:
    written(workplace / "a.tsv", PAIRS)
    (workplace / "empty.tsv").touch()
    done: subprocess.CompletedProcess[bytes] = run("chatbot.corpus", *arguments)
    assert done.returncode == 2
    errors = done.stderr.decode().splitlines()
    assert len(errors) == 1, errors
    assert errors[0].startswith("error: ")
    assert message in errors[0]
