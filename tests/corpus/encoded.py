"""Small corpora for tests: their settings, encoding and text, and the commands that read them."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

from chatbot import commands
from chatbot.config.corpus import EncodeSettings
from chatbot.corpus.dataset import Corpus, training_set
from chatbot.errors import exit_code_of
from chatbot.flags import compose

PAIRS = [
    ("你好", "你好呀"),
    ("吃了吗", "刚吃过！"),
    ("hello world", "hi  there"),
    ("你好", "你好呀"),
    ("一样", "一样"),
    ("", "空"),
    ("天安门", "在北京"),
]


def written(path: Path, pairs: list[tuple[str, str]]) -> str:
    """A .tsv of these pairs."""
    path.write_text("".join(f"{q}\t{a}\n" for q, a in pairs), encoding="utf-8")
    return str(path)


def settings(tmp_path: Path, pairs: list[tuple[str, str]], **changes: Any) -> EncodeSettings:
    """Settings for a file of these pairs, whose columns are given: some tests repeat a few values."""
    data = (written(tmp_path / "pairs.tsv", pairs),)
    return compose(EncodeSettings, data=data, columns=("1", "2"), cache=str(tmp_path / "cache"), **changes)


def encoded_corpus(settings: EncodeSettings) -> Corpus:
    """The corpus as training loads it."""
    return training_set(settings.corpus, settings.encoding)


def texts(corpus: Corpus) -> list[tuple[str, str]]:
    """The pairs as text, shard after shard."""
    text = corpus.vocabulary.text
    return [
        (text(pairs.sources.row(i).tolist()), text(pairs.targets.row(i).tolist()))
        for pairs in corpus.shards
        for i in range(len(pairs))
    ]


def data(*arguments: str) -> int:
    """The exit code of `duida data` with these arguments, in this process, which goes on handling signals itself."""
    with patch("signal.signal"):
        try:
            return exit_code_of(lambda: commands.run("data", arguments))
        except SystemExit as ended:  # of the parser
            return int(ended.code or 0)
