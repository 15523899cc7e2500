"""Writes the retrieval index of an attempt's training pairs, and optionally their embeddings."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chatbot.config.corpus import NONE
from chatbot.corpus.cache import key_of, make_once
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.shards import dtype_for
from chatbot.corpus.vocabulary import EOS, Vocabulary, question_of
from chatbot.corpus.workers import progress_bar
from chatbot.display import duration, pluralize
from chatbot.durable import read_json, write_json
from chatbot.retrieval.characters import character_index
from chatbot.retrieval.index import (
    ARRAYS,
    DESCRIPTION,
    ELSEWHERE,
    LENGTHS,
    MEANING,
    PAIRS,
    QUESTIONS,
    REPLIES,
    TOKENS,
    VERSION,
    Retrieval,
)
from chatbot.retrieval.vectors import MeaningWriter


def write_retrieval(
    folder: Path,
    shards: Sequence[EncodedPairs],
    vocabulary: Vocabulary,
    corpus: str,
    max_pairs: int,
    cache: Path,
    validated: bool = True,
) -> None:
    """Write the index of training pairs atomically, unless the folder already contains it.

    If the model is validated, pairs are excluded if their replies contain names or links. Otherwise, all pairs are
    indexed.

    Args:
        folder: The folder to write.
        shards: The training pairs.
        vocabulary: The vocabulary of the pairs.
        corpus: A string that identifies the corpus.
        max_pairs: The maximum number of pairs to index. If there are more, evenly spaced pairs are selected.
        cache: The folder that caches the index for other attempts with the same corpus.
        validated: Whether the model is validated.

    Raises:
        OSError: A file cannot be written.
        UserError: The disk is full.
    """
    description = {"version": VERSION, "corpus": corpus, "vocabulary": vocabulary.fingerprint(), "most": max_pairs}
    if not validated:
        description["validated"] = False
    if _is_written(folder, {**description, "validated": validated}):
        return
    cached = cache / f"retrieval-{key_of(**description, pairs=sum(map(len, shards)))}"
    with make_once(cached) as part:
        if part:
            _write_index(part, shards, vocabulary, max_pairs, description)
    if not (cached / DESCRIPTION).exists():  # There were no pairs to index.
        return
    if (folder / MEANING).exists():
        print(f"{folder / MEANING}: removed, because the pairs have changed; create it again with --embeddings")
    part_folder = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part_folder, ignore_errors=True)
    part_folder.mkdir()
    for name in (DESCRIPTION, *(f"{name}.npy" for name in (*ARRAYS, *PAIRS))):
        shutil.copyfile(cached / name, part_folder / name)
    shutil.rmtree(folder, ignore_errors=True)  # The old index is kept until the new one is complete.
    part_folder.rename(folder)


def _write_index(
    folder: Path,
    shards: Sequence[EncodedPairs],
    vocabulary: Vocabulary,
    max_pairs: int,
    description: Mapping[str, Any],
) -> None:
    """Write the files of an index to a folder, unless there are no pairs to index."""
    keeps_all = not description.get("validated", True)
    total = sum(map(len, shards))
    chosen = np.arange(min(max_pairs, total)) * total // min(max_pairs, total)
    texts: list[str] = []
    sides: list[tuple[Sequence[int], Sequence[int]]] = []
    first = 0
    with progress_bar("Indexing", len(chosen), "pairs") as bar:
        for part in shards:
            rows = chosen[(chosen >= first) & (chosen < first + len(part))] - first
            for row in rows:
                question = question_of(part.sources.row(row).tolist(), vocabulary)
                reply = part.targets.row(row).tolist()
                if keeps_all or not any(mark in vocabulary.text(reply) for mark in ELSEWHERE):
                    texts.append(vocabulary.text(question))
                    sides.append((question, reply))
            first += len(part)
            bar.update(len(rows))
    if not texts:
        return
    index = character_index(texts)
    arrays = {name: getattr(index, name) for name in ARRAYS}
    for number, name in enumerate((QUESTIONS, REPLIES)):
        arrays[name] = Ragged.from_rows([pair[number] for pair in sides]).flat.astype(dtype_for(vocabulary))
    counts = np.bincount(arrays[REPLIES], minlength=len(vocabulary)) + 1.0  # Adding 1 avoids zero probabilities.
    counts[EOS] += len(sides)
    arrays[TOKENS] = np.log(counts / counts.sum()).astype(np.float32)
    arrays[LENGTHS] = np.array([[len(question), len(reply)] for question, reply in sides], np.uint32)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    write_json(folder / DESCRIPTION, {**description, "mean_length": index.mean_length})


def _is_written(folder: Path, description: Mapping[str, Any]) -> bool:
    try:
        written = read_json(folder / DESCRIPTION)
    except (OSError, ValueError):
        return False
    # Descriptions of validated attempts lack the key "validated".
    return isinstance(written, dict) and description.items() <= {"validated": True, **written}.items()


def index_by_meaning(folder: Path, vocabulary: Vocabulary, embeddings: str) -> None:
    """Write the embeddings of an attempt's training pairs, or delete them. The expected time is printed.

    Args:
        folder: The folder of the index.
        vocabulary: The vocabulary of the attempt.
        embeddings: The name or folder of an embedding model, or "none" to delete the embeddings.

    Raises:
        UserError: The embedding model cannot be used.
        OSError: A file cannot be written.
    """
    if embeddings == NONE:
        for name in (MEANING, f"{MEANING}.part"):
            shutil.rmtree(folder / name, ignore_errors=True)
        return
    writer = meaning_writer(folder, vocabulary, embeddings)
    if not writer.is_written:
        seconds = duration(writer.seconds_left())
        pairs = pluralize(writer.pairs - writer.done, "pair")
        print(f"Embedding {pairs}: about {seconds}, {writer.megabytes:,.0f} MB in the attempt.")
        with progress_bar("Embedding", writer.pairs, "pairs", writer.done) as bar:
            writer.write(advance=bar.update)


def meaning_writer(folder: Path, vocabulary: Vocabulary, embeddings: str) -> MeaningWriter:
    """Return a writer of the embeddings of an attempt's training pairs; see `index_by_meaning`."""
    retrieval = Retrieval(folder, vocabulary, reads_meaning=False)
    return MeaningWriter(folder / MEANING, embeddings, retrieval.texts(), retrieval.key)
