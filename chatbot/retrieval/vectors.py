"""The vectors of an attempt's training pairs on disk, found by the meaning of their questions."""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.corpus.workers import progress_bar
from chatbot.display import counted, duration
from chatbot.durable import read_json, write_json
from chatbot.errors import UserError
from chatbot.retrieval.embeddings import FILES, PROBE, Embeddings, Vectors, normalised, open_embeddings

# The files: the vectors of questions and replies, [pairs, size] int8, whose lengths mean nothing; the linear map from
# replies to questions, [size + 2, size] float32, with the means of both; the lengths of what it gives for the replies,
# [pairs] float32; for many pairs, a graph of neighbours.
SIDES = QUESTIONS, REPLIES = "questions", "replies"
MAP = "map.npy"
EXPECTED = "expected.npy"
GRAPH = "graph.usearch"
MODEL = "model"
DESCRIPTION = "meaning.json"
VECTORS = "vectors.npy"  # of both sides, [2, pairs, size] float16, while an index is made
VERSION = 1
# Up to as many pairs, all are compared with a question: 7,575 in 1.2 ms.
MOST_COMPARED = 30_000
# Pairs that are embedded between two notes of how far it went.
BLOCK = 256
# The weight of the ridge regression, in pairs. For 10, 30 and 100, the choice among ten was 0.549, 0.544 and 0.545.
RIDGE = 30.0
# Vectors of texts that are kept, 1.5 kB each: a question is asked again, and rated pairs are looked up often.
KEPT_VECTORS = 10_000
# The product with the vector of PROBE from which on a model is the one that made an index.
SAME = 0.99


class Meaning:
    """The vectors of training pairs, and the model that embeds questions. Any thread may use it.

    folder: what `write_meaning` wrote. pairs, key: their number, and what tells them apart. Raises UserError for a
    folder that is damaged, or of other pairs or another model, and for packages that are missing.
    """

    def __init__(self, folder: Path, pairs: int, key: Mapping[str, Any]) -> None:
        remedy = "make it again with `duida attempts index NAME --embeddings ...`"
        try:
            description = read_json(folder / DESCRIPTION)
            arrays = [np.asarray(np.load(folder / f"{side}.npy", mmap_mode="r", allow_pickle=False)) for side in SIDES]
            *self._means, self._map = np.split(np.load(folder / MAP, allow_pickle=False), [1, 2])
            lengths = np.load(folder / EXPECTED, allow_pickle=False)
            size = len(probe := np.array(description["probe"], np.float32))
            is_whole = {**key, "version": VERSION}.items() <= description.items() and self._map.shape == (size, size)
            is_whole &= lengths.shape == (pairs,)
            is_whole &= all(array.shape == (pairs, size) and array.dtype == np.int8 for array in arrays)
        except (OSError, EOFError, ValueError, LookupError, TypeError):
            is_whole = False
        if not is_whole:
            raise UserError(f"{folder}: damaged, or of other pairs; {remedy}")
        self._questions, self._replies = arrays
        self._lengths = lengths
        kept = folder / MODEL
        self._model = open_embeddings(description["embeddings"], kept if kept.is_dir() else None)
        own = self._model.embed([PROBE])[0]
        if own.shape != probe.shape or own @ probe < SAME:
            raise UserError(f"{folder}: of another model than {description['embeddings']} is here; {remedy}")
        self._graph = None
        if pairs > MOST_COMPARED:
            self._graph = _usearch().index.Index.restore(folder / GRAPH, view=True)
        self._kept: dict[str, Vectors] = {}

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, [texts, size], those that were embedded lately without the model."""
        kept = self._kept  # another thread may replace it
        missing = [text for text in dict.fromkeys(texts) if text not in kept]
        new = dict(zip(missing, self._model.embed(missing), strict=True)) if missing else {}
        rows = [new[text] if text in new else kept[text] for text in texts]
        vectors = np.stack(rows) if rows else self._map[:0]
        if len(kept) + len(new) > KEPT_VECTORS:
            self._kept = new
        else:
            kept.update(new)
        return vectors

    def nearest(self, vector: Vectors, number: int) -> list[int]:
        """Return the numbers of the pairs whose questions are nearest to a vector, the nearest first."""
        row = _as_int8(vector)
        number = min(number, len(self._questions))
        if self._graph is not None:
            matches = self._graph.search(row, number)
        else:
            index = _usearch().index
            matches = index.search(self._questions, row, number, index.MetricKind.Cos, exact=True)
        return [int(key) for key in matches.keys.ravel()]

    def of_pairs(self, numbers: Sequence[int]) -> tuple[Vectors, Vectors]:
        """Return the vectors of the questions and of the replies of pairs, [pairs, size] each."""
        return normalised(self._questions[numbers]), normalised(self._replies[numbers])

    def likeness(self, question: Vectors, replies: Vectors, numbers: Sequence[int] | None = None) -> Vectors:
        """Return how near replies are to a question, [replies, 2]: as they are, and by what was learned.

        The second is the similarity of the question to the one that the linear map expects before each reply.
        question: [size], or one for each reply. replies: [replies, size]. numbers: of the pairs that have them.
        """
        centred = replies - self._means[1]
        # A product of one vector with the map, in place of one with each reply: their lengths are known.
        asked = normalised(question - self._means[0]) @ self._map.T
        lengths = self._lengths[numbers] if numbers is not None else np.linalg.norm(centred @ self._map, axis=-1)
        learned = dots(centred, asked) / np.maximum(lengths, np.finfo(np.float32).tiny)
        return np.stack([dots(replies, question), learned], axis=-1)


def write_meaning(folder: Path, name: str, texts: tuple[Sequence[str], Sequence[str]], key: Mapping[str, Any]) -> None:
    """Write the vectors of training pairs, unless the folder has them already. The folder is complete or absent.

    It goes on where a process was ended. name: --embeddings. texts: the questions and the replies, at least one pair.
    key: what tells the pairs apart. Prints how long it takes. Raises UserError, and OSError.
    """
    model = open_embeddings(name)
    probe = model.embed([PROBE])[0]
    description = {"version": VERSION, "embeddings": name, **key, "probe": [round(float(x), 5) for x in probe]}
    if _read(folder) == description:
        return
    _usearch()  # or its absence is known after hours
    part = folder.with_name(f"{folder.name}.part")
    if _read(part) != description:
        shape = (2, len(texts[0]), len(probe))
        is_begun = (part / VECTORS).exists()
        is_begun &= {**_read(part), "done": 0} == {**description, "done": 0}
        done = _read(part).get("done", 0) if is_begun else 0
        if not done:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        vectors = np.lib.format.open_memmap(part / VECTORS, "r+" if done else "w+", np.float16, shape)
        for end in _embedded(model, texts, vectors, done):
            vectors.flush()
            write_json(part / DESCRIPTION, {**description, "done": end})
        _finish(part, vectors)
        del vectors
        for file in FILES if Path(name).is_dir() else ():
            if (Path(name) / file).is_file():
                (part / MODEL / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(name) / file, part / MODEL / file)
        write_json(part / DESCRIPTION, description)
    (part / VECTORS).unlink(missing_ok=True)  # only now: with them, each step before can be repeated
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def _embedded(
    model: Embeddings, texts: tuple[Sequence[str], Sequence[str]], vectors: npt.NDArray[np.float16], done: int
) -> Iterator[int]:
    """Embed the texts from pair `done` on, and yield how far it went. Prints the time that it takes."""
    total = len(texts[0])
    began = time.monotonic()
    with progress_bar("Embedding", total, "pairs", initial=done) as bar:
        for first in range(done, total, BLOCK):
            block = slice(first, first + BLOCK)
            for side in range(2):
                vectors[side, block] = model.embed(texts[side][block])
            if first == done:
                seconds = (time.monotonic() - began) / len(texts[0][block]) * (total - done)
                size = 2 * vectors.shape[2] * total / 1e6
                pairs = counted(total - done, "pair")
                print(f"Embedding {pairs}: about {duration(seconds)}, {size:,.0f} MB in the attempt.")
            bar.update(len(texts[0][block]))
            yield min(total, block.stop)


def _finish(part: Path, vectors: npt.NDArray[np.float16]) -> None:
    """Write the files of an index from all vectors, [2, pairs, size]."""
    total, size = vectors.shape[1:]
    blocks = [slice(first, first + 64 * BLOCK) for first in range(0, total, 64 * BLOCK)]
    means = np.stack([sum(side[block].sum(axis=0, dtype=np.float64) for block in blocks) for side in vectors]) / total
    squares = RIDGE * np.eye(size)
    products = np.zeros([size, size])
    arrays = [np.lib.format.open_memmap(part / f"{s}.npy", "w+", np.int8, (total, size)) for s in SIDES]
    for block in blocks:
        for side, array in zip(vectors, arrays, strict=True):
            array[block] = _as_int8(side[block])
        questions, replies = (normalised(side[block] - mean) for side, mean in zip(vectors, means, strict=True))
        squares += replies.T @ replies
        products += replies.T @ questions
    learned = np.linalg.solve(squares, products)  # ridge regression of questions on replies
    np.save(part / MAP, np.concatenate([means, learned]).astype(np.float32))
    expected = [np.linalg.norm((normalised(arrays[1][block]) - means[1]) @ learned, axis=-1) for block in blocks]
    np.save(part / EXPECTED, np.concatenate(expected).astype(np.float32))
    if total > MOST_COMPARED:
        usearch = _usearch().index
        graph = usearch.Index(ndim=size, metric=usearch.MetricKind.Cos, dtype=usearch.ScalarKind.I8)
        with progress_bar("Joining neighbours", total, "pairs") as bar:
            for block in blocks:
                graph.add(np.arange(total)[block], arrays[0][block])
                bar.update(len(arrays[0][block]))
        graph.save(part / GRAPH)


def dots(rows: Vectors, vector: Vectors) -> Vectors:
    """Return the product of each row with a vector, or with its own row of several.

    Without BLAS, whose threads would wait for the next product while the embedding model needs the cores.
    """
    products: Vectors = (rows * vector).sum(axis=-1)
    return products


def _as_int8(vectors: npt.ArrayLike) -> npt.NDArray[np.int8]:
    """Return vectors as whole numbers, the largest of each 127: cosines need no lengths."""
    array = np.asarray(vectors, np.float32)
    largest = np.maximum(np.abs(array).max(axis=-1, keepdims=True), 1e-9)
    rounded: npt.NDArray[np.int8] = np.rint(array * (127 / largest)).astype(np.int8)
    return rounded


def _read(folder: Path) -> dict[str, Any]:
    try:
        return dict(read_json(folder / DESCRIPTION))
    except (OSError, ValueError, TypeError):
        return {}


def _usearch() -> Any:
    """Return the library that searches vectors. Raises UserError without it."""
    try:
        import usearch.index
    except ModuleNotFoundError:
        raise UserError("--embeddings: usearch is not installed; run `pip install usearch`") from None
    return usearch
