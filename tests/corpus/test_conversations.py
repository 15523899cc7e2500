"""Conversations in the encoded form: the links of a chunk's pairs give the turns before each question."""

from pathlib import Path

import numpy as np
import pytest

from chatbot.config.corpus import CorpusSettings
from chatbot.corpus import files as files_module
from chatbot.corpus.chunks import load_chunk
from chatbot.corpus.files import TokenisedFiles, corpus_files, tokenise
from chatbot.corpus.reading.sources import find_sources
from chatbot.corpus.workers import worker_pool
from tests.corpus.reading.sample_files import conversations, written


def tokenised_files(path: Path, folder: Path) -> TokenisedFiles:
    """The chunks of a file."""
    settings = CorpusSettings(data=(str(path),), tokenizer="char", cache=str(folder / "cache"))
    with worker_pool() as pool:
        return tokenise(corpus_files(find_sources(settings.data), settings), pool)


def conversations_in(files: TokenisedFiles) -> list[list[str]]:
    """The conversations of all chunks; those that span two chunks are in two parts."""
    found = []
    for path, _, pairs in files.chunks:
        chunk = load_chunk(path)
        texts = list(chunk.texts(np.arange(pairs)))
        found += conversations((*text, link) for text, link in zip(texts, chunk.links.tolist(), strict=True))
    return found


def conv(turns: list[list[str]]) -> str:
    """These conversations in the conv format."""
    return "".join("E\n" + "".join(f"M {turn}\n" for turn in talk) for talk in turns)


@pytest.mark.parametrize("pairs_per_chunk", [1, 3, 4, 7, 100])
def test_chunks_keep_whole_conversations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pairs_per_chunk: int) -> None:
    monkeypatch.setattr(files_module, "PAIRS_PER_CHUNK", pairs_per_chunk)
    turns = [[f"{talk} {turn}" for turn in range(2 + talk % (pairs_per_chunk + 1))] for talk in range(30)]
    files = tokenised_files(written(tmp_path, "a.conv", conv(turns)), tmp_path)
    assert conversations_in(files) == turns
    assert max(chunk.pairs for chunk in files.chunks) < 2 * pairs_per_chunk + 1


def test_conversation_longer_than_two_chunks_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "PAIRS_PER_CHUNK", 4)
    files = tokenised_files(written(tmp_path, "a.conv", conv([[str(turn) for turn in range(20)]])), tmp_path)
    assert [chunk.pairs for chunk in files.chunks] == [8, 8, 3]
    assert [talk[0] for talk in conversations_in(files)] == ["0", "8", "16"]
