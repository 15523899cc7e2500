"""Writes the index of an attempt's training pairs, which `index` reads, and their vectors."""

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


def write_retrieval(
    folder: Path,
    shards: Sequence[EncodedPairs],
    vocabulary: Vocabulary,
    corpus: str,
    most: int,
    cache: Path,
    validated: bool = True,
) -> None:
    """Write the index of training pairs, unless the folder has it already. The folder is complete or absent.

    With validation, pairs with names or links in their replies are left out; without, they are answers. corpus: what
    tells corpora apart. most: the number of pairs that are used, spread over all of them. cache: the folder in which
    the index of a corpus is made once. validated: whether validation measures the model. Raises OSError, and UserError
    if the disk is full.
    """
    description = {"version": VERSION, "corpus": corpus, "vocabulary": vocabulary.fingerprint(), "most": most}
    if not validated:
        description["validated"] = False
    if _is_written(folder, {**description, "validated": validated}):
        return
    made = cache / f"retrieval-{key_of(**description)}"
    with make_once(made) as part:
        if part:
            _write_index(part, shards, vocabulary, most, description)
    if not (made / DESCRIPTION).exists():  # no pair is left
        return
    if (folder / MEANING).exists():
        print(f"{folder / MEANING}: of other pairs, and removed; make it again with --embeddings")
    part_folder = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part_folder, ignore_errors=True)
    part_folder.mkdir()
    for name in (DESCRIPTION, *(f"{name}.npy" for name in (*ARRAYS, *PAIRS))):
        shutil.copyfile(made / name, part_folder / name)
    shutil.rmtree(folder, ignore_errors=True)  # only after the new index is on the disk
    part_folder.rename(folder)


def _write_index(
    folder: Path,
    shards: Sequence[EncodedPairs],
    vocabulary: Vocabulary,
    most: int,
    description: Mapping[str, Any],
) -> None:
    """Write the files of an index into a folder; none if no pair is left."""
    keeps_all = not description.get("validated", True)
    total = sum(map(len, shards))
    chosen = np.arange(min(most, total)) * total // min(most, total)
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
    counts = np.bincount(arrays[REPLIES], minlength=len(vocabulary)) + 1.0  # one more, for tokens without a reply
    counts[EOS] += len(sides)
    arrays[TOKENS] = np.log(counts / counts.sum()).astype(np.float32)
    arrays[LENGTHS] = np.array([[len(question), len(reply)] for question, reply in sides], np.uint16)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    write_json(folder / DESCRIPTION, {**description, "mean_length": index.mean_length})


def _is_written(folder: Path, description: Mapping[str, Any]) -> bool:
    try:
        written = read_json(folder / DESCRIPTION)
    except (OSError, ValueError):
        return False
    # Those that do not say it are of an attempt with validation.
    return isinstance(written, dict) and description.items() <= {"validated": True, **written}.items()


def index_by_meaning(folder: Path, vocabulary: Vocabulary, embeddings: str | None) -> None:
    """Write, keep or remove the vectors of an attempt's pairs. Raises UserError, OSError.

    folder: the index of the pairs. embeddings: --embeddings; None keeps what is there.
    """
    if embeddings == NONE:
        for name in (MEANING, f"{MEANING}.part"):
            shutil.rmtree(folder / name, ignore_errors=True)
    elif embeddings is not None:
        from chatbot.retrieval.vectors import write_meaning

        retrieval = Retrieval(folder, vocabulary, reads_meaning=False)
        write_meaning(folder / MEANING, embeddings, retrieval.texts(), retrieval.key)
