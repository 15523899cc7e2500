"""The inspection report: measurements, warnings, and that nothing is written to disk."""

import itertools
import json
import shlex
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from chatbot.attempts.settings import train_settings
from chatbot.config.corpus import CorpusSettings
from chatbot.corpus.files import training_files
from chatbot.corpus.inspection import VOCABULARY_SIZES, Measurements, measure, report_lines, warnings
from chatbot.corpus.reading.lines import FALSE_RESPONSES
from chatbot.corpus.reading.read import NO_DATA
from chatbot.corpus.reading.subtitles import NO_SPEECH
from chatbot.corpus.reading.turns import NO_TEXT, NOT_TEXT, NOTICES, OF_PROGRAMS
from chatbot.corpus.tokenizer import tokenizer
from chatbot.corpus.vocabulary import MIN_SIZE, build_vocabulary
from tests.corpus.encoded import data, written
from tests.corpus.reading.wild_files import write

PAIRS = [
    ("你好", "你好呀"),
    ("你好！", "你好呀！！"),
    ("吃了吗", "呵呵"),
    ("去哪里", "呵呵"),
    ("去哪里", "呵呵"),
    ("同", "同"),
]


def measured(tmp_path: Path, pairs: list[tuple[str, str]], **changes: Any) -> Measurements:
    """The measurements of these pairs, whose columns are given: some tests repeat a few values."""
    path = written(tmp_path / "pairs.tsv", pairs)
    settings = CorpusSettings(data=(path,), columns=("1", "2"), cache=str(tmp_path / "cache"), **changes)
    return measure(training_files(settings))


def test_measurements_of_a_small_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the whole report on it, as if it were large."""
    measurements = measured(tmp_path, PAIRS, tokenizer="char")
    (file,) = measurements.files
    assert (file.report.pairs, file.kept, measurements.pairs) == (6, 4, 4)
    assert measurements.samples == PAIRS[:3]
    assert measurements.lengths.tolist() == [[2, 4], [3, 6], [9, 3], [9, 3]]
    assert measurements.tokens == measurements.characters == len(set("你好呀！吃了吗呵去哪里"))
    characters = Counter(character for pair in PAIRS[:4] for side in pair for character in side)
    known = sum(count for count in characters.values() if count > 1) / characters.total()
    assert measurements.coverage == {4000: pytest.approx(known)}  # more entries would be the same
    assert measurements.top_replies[0] == ("呵呵", 2)
    assert measurements.top_share == 1.0
    assert (measurements.max_length, measurements.vocabulary_size) == (9, 4000)
    monkeypatch.setattr("chatbot.corpus.inspection.MIN_PAIRS_TO_SPLIT", measurements.pairs)
    assert "\n".join(report_lines(measurements, CorpusSettings())).replace(f"{tmp_path}/", "") == REPORT


REPORT = """pairs.tsv: tsv; UTF-8; 6 pairs, 4 kept
  question from column 1 and answer from column 2, first row as pair
  left out: pairs whose answer equals the question: 1
  left out: duplicate pairs: 1

The first pairs:
  你好 -> 你好呀
  你好！ -> 你好呀！！
  吃了吗 -> 呵呵

Lengths in tokens:
  questions: half up to 3, 99% up to 9, all up to 9
  replies: half up to 3, 99% up to 6, all up to 6

Vocabulary: 11 different tokens, 11 of them characters.
Tokens outside the vocabulary are spelled in characters, and characters outside it in bytes.
   4,000 entries cover  73.9% of all tokens

The 3 most frequent replies are 100.0% of all:
         2  呵呵
         1  你好呀
         1  你好呀！！

Longer than the default --max-length 50: 0 pairs, which training drops.

Suggested: python train.py --attempt chatterbot --max-length 9 --vocabulary-size 4000
Warning: pairs.tsv: 33% left out, mostly pairs whose answer equals the question"""


def test_coverage_is_the_share_of_tokens_in_a_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(twice == 2 * size for size, twice in itertools.pairwise(VOCABULARY_SIZES))
    sizes = range(MIN_SIZE, MIN_SIZE + 20)
    monkeypatch.setattr("chatbot.corpus.inspection.VOCABULARY_SIZES", sizes)
    pairs = [
        ("天安门", "北京"),
        ("天安门", "上海"),
        ("上海", "北京"),
        ("北京", "天安门 上海"),
        ("我", "上海 北京"),
        ("我", "你"),
    ]
    measurements = measured(tmp_path, pairs)
    tokens = Counter(token for pair in pairs for side in pair for token in tokenizer()(side))
    for size, coverage in measurements.coverage.items():
        vocabulary = build_vocabulary(tokens, size).tokens
        assert coverage == pytest.approx(sum(tokens[t] for t in vocabulary) / tokens.total())
    assert 5 < len(measurements.coverage) < len(sizes)
    assert not any(" of all tokens" in line for line in report_lines(measurements, CorpusSettings()))
    monkeypatch.setattr("chatbot.corpus.inspection.MIN_PAIRS_TO_SPLIT", len(pairs))
    shown = [line for line in report_lines(measurements, CorpusSettings()) if line.endswith(" of all tokens")]
    assert len(shown) == len(measurements.coverage)


def test_changed_utterances_are_counted_by_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, and nothing in the report depends on the chunks."""
    pairs = [
        *((f"问题{i % 90}", f"回答{i % 7}") for i in range(300)),
        ("Ｈｉ！！！！", "好"),
        ("在", "ｂＢ"),
        ("早", "好！！！！"),
    ]
    settings: dict[str, Any] = {"clean": ("nfkc", "punctuation")}
    whole = report_lines(measured(tmp_path, pairs, **settings), CorpusSettings(**settings))
    assert {line for line in whole if " changed " in line} == {
        "  --clean nfkc changed 3 utterances",
        "  --clean punctuation changed 2 utterances",
    }
    monkeypatch.setattr("chatbot.corpus.files.PAIRS_PER_CHUNK", 32)
    shutil.rmtree(tmp_path / "cache")
    assert report_lines(measured(tmp_path, pairs, **settings), CorpusSettings(**settings)) == whole


def test_warnings_give_remedies(tmp_path: Path) -> None:
    """Following the last one removes it."""
    lines = "\n".join(warnings(measured(tmp_path, [*PAIRS, ("", "空"), ("空", "")]), CorpusSettings()))
    assert "50% left out, mostly pairs with an empty side" in lines
    assert "--max-reply-frequency" not in lines  # no reply is frequent enough
    files = tuple(written(tmp_path / name, pairs) for name, pairs in (("a.tsv", PAIRS), ("b.tsv", PAIRS[2:4])))
    settings = CorpusSettings(data=files, cache=str(tmp_path / "cache"))
    without_pair = f"{files[1]}: no pair is kept; the reasons are listed above"
    assert without_pair in warnings(measure(training_files(settings)), settings)
    pairs = [(f"问题{i}", "呵呵" if i % 2 else f"答案{i}") for i in range(2000)]
    assert warnings(measured(tmp_path, pairs[:-1]), CorpusSettings()) == []  # phrasings of one question
    (frequent,) = warnings(measured(tmp_path, pairs), CorpusSettings())
    assert "50% of all replies are the same 10" in frequent
    assert frequent.endswith("--max-reply-frequency 10")
    capped = CorpusSettings(max_reply_frequency=10)
    assert warnings(measured(tmp_path, pairs, max_reply_frequency=10), capped) == []


@pytest.mark.parametrize(
    ("reason", "warns"),
    [
        *((reason, False) for reason in (NO_DATA, NOTICES, NO_TEXT, NOT_TEXT, OF_PROGRAMS, FALSE_RESPONSES, NO_SPEECH)),
        *((f"pairs {chosen}", False) for chosen in ("beyond --max-reply-frequency 3", "with a blocked word")),
        ("duplicate pairs", True),
    ],
)
def test_what_is_no_pair_or_left_out_by_a_flag_gives_no_warning(tmp_path: Path, reason: str, warns: bool) -> None:
    found = measured(tmp_path, [(f"问{i}", f"答{i}") for i in range(20)])
    found.files[0].report.drop(reason, count=99)
    assert bool(warnings(found, CorpusSettings())) == warns
    assert (report_lines(found, CorpusSettings())[-1] == "No warnings.") != warns


def test_fields_and_notices_beside_the_pairs_give_no_warning(tmp_path: Path) -> None:
    """Every pair of both files is kept."""
    records = [{"question": f"问题{i}", "answer": f"答案{i}", "category": "闲聊", "source": "网"} for i in range(500)]
    record_file, chat = tmp_path / "a.jsonl", tmp_path / "b.txt"
    record_file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    sent = [f"2024-01-01 10:{i // 30:02}:{i % 30:02} {'甲乙'[i % 2]}(1000{i % 2})\n话{i}\n\n" for i in range(600)]
    notice = "2024-01-01 23:00:00 系统消息(10000)\n甲撤回了一条消息\n\n"
    chat.write_text("".join(sent) + notice * 100)
    settings = CorpusSettings(data=(str(record_file), str(chat)), cache=str(tmp_path / "cache"))
    measurements = measure(training_files(settings))
    assert [(file.report.pairs, file.kept) for file in measurements.files] == [(500, 500), (599, 599)]
    assert warnings(measurements, settings) == []
    lines = report_lines(measurements, settings)
    assert f"  note: fields that are not used: category, source (first: {record_file})" in lines
    assert any(line.startswith("  left out: notices of the application") for line in lines)


SUGGESTED: list[tuple[dict[str, Any], str]] = [
    ({"data": ("my pairs.tsv", "b.tsv"), "clean": ("urls",), "columns": ("2", "3")}, "my"),
    ({}, "chatterbot"),
    ({"data": ("../语料-2.tar.gz",)}, "语料-2"),
    ({"data": ("a/*.tsv",)}, "mine"),
    ({"data": ("default.tsv",)}, "mine"),
    ({"data": ("长" * 80,)}, "长" * 50),
    ({"source_file": "q.txt", "target_file": "a.txt"}, "q"),
]


def test_suggested_command_is_of_an_attempt_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default one exists after `make train`, with other pairs."""
    measurements = measured(tmp_path, PAIRS)
    monkeypatch.setattr("chatbot.corpus.inspection.MIN_PAIRS_TO_SPLIT", measurements.pairs)
    for given, attempt in SUGGESTED:
        settings = CorpusSettings(**given)
        lines = report_lines(measurements, settings)
        (suggested,) = [line for line in lines if line.startswith("Suggested: python train.py ")]
        assert "  " not in suggested
        chosen = train_settings(shlex.split(suggested)[3:])
        assert (chosen.corpus, chosen.run.attempt, chosen.model.max_length) == (settings, attempt, 9)
    assert "Longer than the default --max-length 50: 0 pairs, which training drops." in lines


def test_report_on_a_faq_is_about_look_ups(tmp_path: Path) -> None:
    """No flag cuts questions or words more than the default does. A list of replies that differ says nothing."""
    for number, flags in ((12, ""), (60, " --max-length 61")):
        lines = report_lines(measured(tmp_path, [("几点开门", "九" * number)], tokenizer="char"), CorpusSettings())
        assert f"Suggested: python train.py --attempt chatterbot{flags}" in lines
        assert f"Longer than the default --max-length 50: {bool(flags):d} pair" in "\n".join(lines)
    assert "Longer than the default --max-length 50: 1 pair, looked up, but not learned." in lines
    assert "Fewer than 2,000 pairs: without --validation, the chat looks answers up and generates none." in lines
    assert not any("most frequent replies" in line for line in lines)


def test_control_characters_of_pairs_and_names_are_not_printed(
    work_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of pairs stay with --clean markup. Parts that are not measured are named."""
    lines = "".join(f"问\x1b[2J{i}好吗,好\x9b31m的{i // 2}\u202e\n" for i in range(4))
    for part in ("train", "valid", "test"):
        path = Path("corpus", part, "a\x1b[31m.csv")
        path.parent.mkdir(parents=True)
        path.write_text(f"question\x1b,answer\n{lines}坏行\n", encoding="utf-8")
    assert data("inspect", "corpus", "--clean", "markup", "--columns", "1", "2") == 0
    text = capsys.readouterr().out
    assert "\n  问\ufffd[2J0好吗 -> 好\ufffd31m的0\ufffd\n" in text
    assert "\n         2  好\ufffd31m的0\ufffd\n" in text
    assert text.replace("\n", "").isprintable()
    write("parts.zip", Path())
    assert data("inspect", "parts.zip") == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "For validation, not counted above: parts.zip (validation part)",
        "For tests, not read: parts.zip (test part)",
    ]


def test_command_prints_one_json_object_per_file_and_writes_nothing(
    work_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Warnings, here of pairs that are left out, change the exit code with a flag only."""
    written(work_dir / "a.tsv", PAIRS)
    written(work_dir / "without.tsv", [(f"第{i}个问题怎么办", f"第{i}个答案在这里") for i in range(60)])
    (work_dir / "b.conv").write_bytes("E\nM 你好\nM 你好呀\nM 再见\n".encode("gb18030"))
    before = sorted(work_dir.rglob("*"))
    assert data("inspect", "a.tsv", "--fail-on-warnings") == 1
    assert data("inspect", "without.tsv", "--fail-on-warnings") == 0
    assert data("inspect", "a.tsv", "b.conv", "--json") == 0
    assert sorted(work_dir.rglob("*")) == before
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line) for line in lines[-2:]] == [
        {
            "file": "a.tsv",
            "format": "tsv",
            "encoding": "UTF-8",
            "pairs": 6,
            "kept": 4,
            "dropped": {"pairs whose answer equals the question": 1, "duplicate pairs": 1},
            "unused": {},
        },
        {
            "file": "b.conv",
            "format": "conv",
            "encoding": "GB18030",
            "pairs": 2,
            "kept": 1,
            "dropped": {"duplicate pairs": 1},
            "unused": {},
        },
    ]
