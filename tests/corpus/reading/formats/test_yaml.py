"""YAML, and the built-in corpus that is written in it."""

import hashlib
import json
from pathlib import Path

import pytest

from chatbot.corpus.reading.open.sources import find_parts
from chatbot.corpus.reading.read import read
from chatbot.corpus.reading.report import Report
from chatbot.errors import UserError
from tests.corpus.reading.sample_files import VALID, dropped, pairs_of, texts, written


@pytest.mark.parametrize("content", [VALID["yaml"], VALID["yaml"].partition("conversations:\n")[2]])
def test_yaml_gives_pairs(tmp_path: Path, content: str) -> None:
    pairs, report = pairs_of(written(tmp_path, "a", content))
    assert pairs == [("你好", "你好呀"), ("吃了吗", "刚吃过"), ("刚吃过", "那就好")]
    assert (report.formats, dropped(report)) == (["yaml"], {})


def test_plain_scalars_stay_text(tmp_path: Path) -> None:
    content = "conversations:\n- [yes, 1, 2020-01-01, ~, 0x10, <<, '']\n- - 独\n"
    pairs, report = pairs_of(written(tmp_path, "a", content))
    assert pairs == [("yes", "1"), ("1", "2020-01-01"), ("2020-01-01", "~"), ("~", "0x10"), ("0x10", "<<"), ("<<", "")]
    assert dropped(report) == {"conversations of one utterance": 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- - &a 甲\n  - *a\n", "line 2: an alias (*a)"),
        ("- - 甲\n  - 乙: 丙: 丁\n", "line 2: not YAML"),
        ("- - 甲\n  - \x07\n", "not YAML"),
        ("- - 甲\n" + "- " * 5000, "lists nested more than 32 deep"),
    ],
)
def test_invalid_yaml_is_a_one_line_error(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        pairs_of(written(tmp_path, "a", content))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_built_in_corpus_has_552_pairs() -> None:
    report = Report()
    (source,) = find_parts([]).training
    pairs = texts(read(source, report))
    # The pairs that yaml.safe_load gives, in their order.
    digest = hashlib.sha256(json.dumps(pairs, ensure_ascii=False).encode()).hexdigest()
    assert (len(pairs), digest[:16]) == (552, "e973df32378e84d3")
    assert (report.pairs, report.formats, report.charsets, report.dropped) == (552, ["chatterbot"], ["UTF-8"], {})
    assert report.read_bytes == sum(path.stat().st_size for path in source.paths)
