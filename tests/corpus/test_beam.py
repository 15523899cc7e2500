"""Encoding on Beam's local runner: the same bytes, reports and errors as the built-in encoder."""

import sys
from pathlib import Path
from typing import Any

import pytest

from chatbot import commands
from chatbot.config.corpus import EncodeSettings
from chatbot.corpus import files, selection, shards
from chatbot.corpus.dataset import Corpus, training_set
from chatbot.corpus.selection import HELD_OUT
from chatbot.corpus.workers import BeamPool
from chatbot.errors import UserError
from chatbot.flags import compose, replace
from tests.commands import run
from tests.corpus.encoded import encoded_corpus

pytest.importorskip("apache_beam", reason="Apache Beam is an extra: make beam")

PAIRS = [(f"第{i % 190}个问题", "呵呵" if i % 3 == 0 else f"回答{i % 60}！") for i in range(400)]


def on_beam(settings: EncodeSettings) -> Corpus:
    """The corpus, encoded on Beam's local runner."""
    pool = BeamPool("DirectRunner", "", Path(settings.corpus.cache))
    return training_set(settings.corpus, settings.encoding, pool=pool)


@pytest.fixture
def settings(tmp_path: Path) -> EncodeSettings:
    """Two files, and a validation file."""
    for name, pairs in (
        ("a.tsv", PAIRS[:300]),
        ("b.tsv", [*PAIRS[300:], ("一样", "一样")]),
        ("held_out.tsv", PAIRS[:5]),
    ):
        (tmp_path / name).write_text("".join(f"{q}\t{a}\n" for q, a in pairs) + "没有制表符\n", encoding="utf-8")
    return compose(
        EncodeSettings,
        data=(str(tmp_path / "a.tsv"), str(tmp_path / "b.tsv")),
        validation=str(tmp_path / "held_out.tsv"),
        max_reply_frequency=20,
        vocabulary_size=290,
        cache=str(tmp_path / "cache"),
    )


@pytest.mark.parametrize("changes", [{}, {"validation": "auto", "history": 2, "data": ("talks.conv",)}])
def test_beam_writes_the_bytes_of_the_built_in_encoder(
    settings: EncodeSettings, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PAIRS_PER_CHUNK", 64)
    monkeypatch.setattr(shards, "PAIRS_PER_SHARD", 50)
    monkeypatch.setattr(selection, "MIN_PAIRS_TO_SPLIT", 50)
    monkeypatch.chdir(tmp_path)
    talks = [[f"{talk}问{turn // 2}" for turn in range(3 + talk % 4)] for talk in range(150)]  # with equal turns
    Path("talks.conv").write_text("".join("E\n" + "".join(f"M {turn}\n" for turn in talk) for talk in talks))
    settings = replace(settings, **changes)
    built_in = encoded_corpus(settings)
    beam = on_beam(replace(settings, cache=settings.corpus.cache + "-beam"))
    names = sorted(path.name for path in built_in.shards.folder.iterdir())
    assert names == sorted(path.name for path in beam.shards.folder.iterdir())
    assert len(built_in.shards) > 1
    is_split = any(HELD_OUT in report.dropped for report in built_in.reports)
    assert is_split == (settings.encoding.validation == "auto")
    for name in set(names) - {"corpus.json", "manifest.json"}:  # the reports are compared below
        assert (built_in.shards.folder / name).read_bytes() == (beam.shards.folder / name).read_bytes()
    assert built_in.fingerprint == beam.fingerprint
    assert built_in.reports == beam.reports


def test_training_reuses_shards_encoded_by_beam(
    settings: EncodeSettings, work_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed = run("chatbot.corpus", "encode", *settings.corpus.data, "--runner", "DirectRunner")
    assert completed.returncode == 0, completed.stderr.decode()[-500:]
    assert "shards: 1, in data/cache/encoded-" in completed.stdout.decode()
    folder = next(Path("data/cache").glob("encoded-*[!k]"))
    before = folder.stat().st_mtime_ns
    assert encoded_corpus(compose(EncodeSettings, data=settings.corpus.data)).shards.folder == folder
    assert folder.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("file", "runner", "message"),
    [("prose.txt", "DirectRunner", "prose.txt: unknown format"), ("a.tsv", "NoRunner", "NoRunner")],
)
def test_runner_error_is_one_line(work_dir: Path, file: str, runner: str, message: str) -> None:
    Path("prose.txt").write_text("Once upon a time.\nThere was a file.\n")
    Path("a.tsv").write_text("你好\t你好呀\n")
    completed = run("chatbot.corpus", "encode", file, "--runner", runner)
    assert completed.returncode == 2
    assert message in completed.stderr.decode().splitlines()[-1]
    assert "Traceback" not in completed.stderr.decode()
    assert not list(Path("data/cache").glob("*.part-*"))


def test_missing_beam_error_gives_the_remedy(settings: EncodeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UserError, match="make beam"):
        commands.run("data encode", [*settings.corpus.data, "--runner", "DirectRunner"])
