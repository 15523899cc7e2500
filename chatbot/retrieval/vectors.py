"""Stores the embeddings of training pairs, and finds the pairs with semantically similar questions."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.corpus.workers import cores, progress_bar
from chatbot.durable import read_json, write_json
from chatbot.errors import UserError
from chatbot.retrieval.embeddings import FILES, PROBE, UnavailableError, Vectors, normalise, open_embeddings
from chatbot.retrieval.text_cache import TextCache

# The vectors of questions and replies, scaled to int8, [pairs, size].
SIDES = QUESTIONS, REPLIES = "questions", "replies"
# The mean vector of questions, the mean vector of replies, and the linear map from replies to questions, in one array
# with shape [2 + size, size].
MAP = "map.npy"
# The vector norms of the replies after the linear map, [pairs] float32.
EXPECTED = "expected.npy"
# The nearest-neighbour graph of the questions, which only large indexes have.
GRAPH = "graph.usearch"
MODEL = "model"
DESCRIPTION = "meaning.json"
VECTORS = "vectors.npy"  # temporary file with the vectors of both sides, [2, pairs, size] float16
VERSION = 1
# Up to this number of pairs, a question is compared with all pairs. With 7,575 pairs, this takes 1.2 ms.
MAX_COMPARED = 30_000
# The progress is saved each time this number of pairs has been embedded, which takes a second on two cores.
BLOCK = 64
# The number of pairs that are embedded to estimate the time.
SAMPLE = 16
# The number of pairs per matrix product.
ROWS = 16_384
# The regularisation of the ridge regression, as a number of pairs. Its value matters little: with 10, 30 and 100, the
# correct one of ten replies was chosen with an accuracy of 0.549, 0.544 and 0.545.
RIDGE = 30.0
# The maximum number of cached vectors, which take 1.5 kB each. Repeated questions and rated pairs use the cache.
MAX_CACHED_VECTORS = 10_000
# The embedding model has changed if the stored and the current vector of PROBE are less similar than this.
MIN_PROBE_SIMILARITY = 0.99


class Meaning:
    """A thread-safe index of the embeddings of training pairs. It contains the model that embeds questions.

    Args:
        folder: A folder written by `MeaningWriter`.
        pairs: The number of pairs.
        key: Values that identify the pairs.

    Raises:
        UnavailableError: A package is not installed.
        UserError: The folder is damaged, or belongs to other pairs or another model.
    """

    def __init__(self, folder: Path, pairs: int, key: Mapping[str, Any]) -> None:
        remedy = "create it again with `duida attempts index NAME --embeddings ...`"
        try:
            description = read_json(folder / DESCRIPTION)
            arrays = [np.asarray(np.load(folder / f"{side}.npy", mmap_mode="r")) for side in SIDES]
            *self._means, self._map = np.split(np.load(folder / MAP), [1, 2])
            lengths = np.load(folder / EXPECTED)
            size = len(probe := np.array(description["probe"], np.float32))
            is_whole = {**key, "version": VERSION}.items() <= description.items() and self._map.shape == (size, size)
            is_whole &= lengths.shape == (pairs,)
            is_whole &= all(array.shape == (pairs, size) and array.dtype == np.int8 for array in arrays)
        except (OSError, EOFError, ValueError, LookupError, TypeError):
            is_whole = False
        if not is_whole:
            raise UserError(f"{folder}: damaged, or belongs to other pairs; {remedy}")
        self._questions, self._replies = arrays
        self._lengths = lengths
        model_copy = folder / MODEL
        self._model = open_embeddings(description["embeddings"], model_copy if model_copy.is_dir() else None)
        current_probe = self._model.embed([PROBE])[0]
        if current_probe.shape != probe.shape or current_probe @ probe < MIN_PROBE_SIMILARITY:
            raise UserError(f"{folder}: created with a different version of {description['embeddings']}; {remedy}")
        self._graph = None
        if pairs > MAX_COMPARED:
            self._graph = _usearch().index.Index.restore(folder / GRAPH, view=True)
        self._vectors = TextCache(self._model.embed, MAX_CACHED_VECTORS)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, [texts, size]. Recently used vectors are cached."""
        rows = self._vectors(texts)
        return np.stack(rows) if rows else self._map[:0]

    def nearest(self, vector: Vectors, number: int) -> list[int]:
        """Return the indices of the pairs whose questions are nearest to a vector, nearest first."""
        row = _as_int8(vector)
        number = min(number, len(self._questions))
        if self._graph is not None:
            matches = self._graph.search(row, number)
        else:
            index = _usearch().index
            matches = index.search(self._questions, row, number, index.MetricKind.Cos, exact=True)
        return [int(key) for key in matches.keys.ravel()]

    def pair_vectors(self, numbers: Sequence[int]) -> tuple[Vectors, Vectors]:
        """Return the question vectors and the reply vectors of pairs, each with shape [pairs, size]."""
        return normalise(self._questions[numbers]), normalise(self._replies[numbers])

    def likeness(self, question: Vectors, replies: Vectors, numbers: Sequence[int] | None = None) -> Vectors:
        """Return two similarities of each reply to a question, with shape [replies, 2].

        The first is the similarity of the question to the reply itself. The second is the similarity of the question to
        the question that the linear map predicts from the reply.

        Args:
            question: The vector of the question, with shape [size], or one question per reply, [replies, size].
            replies: The vectors of the replies, with shape [replies, size].
            numbers: The indices of the training pairs that contain the replies, if any.
        """
        centred = replies - self._means[1]
        # The transposed map is applied to the question, which is cheaper than applying the map to each reply.
        mapped_question = normalise(question - self._means[0]) @ self._map.T
        lengths = self._lengths[numbers] if numbers is not None else np.linalg.norm(centred @ self._map, axis=-1)
        learned = dots(centred, mapped_question) / np.maximum(lengths, np.finfo(np.float32).tiny)
        return np.stack([dots(replies, question), learned], axis=-1)


class MeaningWriter:
    """Embeds training pairs, and writes their vectors to a folder. Unfinished work is resumed.

    Args:
        folder: The folder to write.
        name: The name or folder of the embedding model.
        texts: The questions and the replies of at least one pair.
        key: Values that identify the pairs.

    Attributes:
        pairs: The number of pairs.
        done: The number of pairs that are already embedded.
        is_written: Whether the folder is complete.

    Raises:
        UserError: The embedding model cannot be used.
    """

    def __init__(self, folder: Path, name: str, texts: tuple[Sequence[str], Sequence[str]], key: Mapping[str, Any]):
        self._folder = folder
        self._name = name
        self._texts = texts
        self._model = open_embeddings(name)
        _usearch()  # Fail now rather than after hours of embedding.
        probe = self._model.embed([PROBE])[0]
        self._size = len(probe)
        values = [round(float(x), 5) for x in probe]
        self._description = {"version": VERSION, "embeddings": name, **key, "probe": values}
        self.pairs = len(texts[0])
        self.is_written = _read(folder) == self._description
        self._part = folder.with_name(f"{folder.name}.part")
        progress = _read(self._part)
        self._is_complete = progress == self._description  # An incomplete folder also has the key "done".
        done = progress.pop("done", 0)
        self.done = done if progress == self._description and (self._part / VECTORS).exists() else 0

    def seconds_left(self) -> float:
        """Estimate the time to embed the remaining pairs on idle cores, from the CPU time for a few of them."""
        left = self.pairs - self.done
        sample = range(self.done, self.pairs, max(1, left // SAMPLE))
        start = time.process_time()
        for side in self._texts if left else ():
            self._model.embed([side[i] for i in sample])
        return (time.process_time() - start) / cores() / max(1, len(sample)) * left

    @property
    def megabytes(self) -> float:
        """The size of the vectors in the attempt, in MB."""
        return 2 * self._size * self.pairs / 1e6

    def write(
        self, is_wanted: Callable[[], bool] = lambda: True, advance: Callable[[int], object] = lambda _: None
    ) -> None:
        """Embed the remaining pairs, and write the folder atomically, unless it is already complete.

        Args:
            is_wanted: A callback that returns False to stop after the current block of pairs.
            advance: A callback that is called after each block, with its number of pairs.

        Raises:
            OSError: A file cannot be written.
        """
        if self.is_written or not (self._is_complete or self._embed(is_wanted, advance)):
            return
        (self._part / VECTORS).unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._part.rename(self._folder)
        self.is_written = True

    def _embed(self, is_wanted: Callable[[], bool], advance: Callable[[int], object]) -> bool:
        """Embed the remaining pairs, and return whether all pairs are embedded."""
        part = self._part
        if not self.done:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        shape = (2, self.pairs, self._size)
        vectors = np.lib.format.open_memmap(part / VECTORS, "r+" if self.done else "w+", np.float16, shape)
        while self.done < self.pairs:
            if not is_wanted():
                return False
            block = slice(self.done, min(self.done + BLOCK, self.pairs))
            for side, texts in zip(vectors, self._texts, strict=True):
                side[block] = self._model.embed(texts[block])
            vectors.flush()
            write_json(part / DESCRIPTION, {**self._description, "done": block.stop})
            self.done = block.stop
            advance(block.stop - block.start)
        _finish(part, vectors)
        for file in FILES if Path(self._name).is_dir() else ():
            if (Path(self._name) / file).is_file():
                (part / MODEL / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(self._name) / file, part / MODEL / file)
        write_json(part / DESCRIPTION, self._description)
        return True


def _finish(part: Path, vectors: npt.NDArray[np.float16]) -> None:
    """Write the files of an index, computed from the vectors of all pairs, [2, pairs, size]."""
    total, size = vectors.shape[1:]
    blocks = [slice(first, first + ROWS) for first in range(0, total, ROWS)]
    means = np.stack([sum(side[block].sum(axis=0, dtype=np.float64) for block in blocks) for side in vectors]) / total
    squares = RIDGE * np.eye(size)
    products = np.zeros([size, size])
    arrays = [np.lib.format.open_memmap(part / f"{s}.npy", "w+", np.int8, (total, size)) for s in SIDES]
    for block in blocks:
        for side, array in zip(vectors, arrays, strict=True):
            array[block] = _as_int8(side[block])
        questions, replies = (normalise(side[block] - mean) for side, mean in zip(vectors, means, strict=True))
        squares += replies.T @ replies
        products += replies.T @ questions
    learned = np.linalg.solve(squares, products)  # the ridge regression of questions on replies
    np.save(part / MAP, np.concatenate([means, learned]).astype(np.float32))
    expected = [np.linalg.norm((normalise(arrays[1][block]) - means[1]) @ learned, axis=-1) for block in blocks]
    np.save(part / EXPECTED, np.concatenate(expected).astype(np.float32))
    if total > MAX_COMPARED:
        usearch = _usearch().index
        graph = usearch.Index(ndim=size, metric=usearch.MetricKind.Cos, dtype=usearch.ScalarKind.I8)
        with progress_bar("Joining neighbours", total, "pairs") as bar:
            for block in blocks:
                graph.add(np.arange(total)[block], arrays[0][block])
                bar.update(len(arrays[0][block]))
        graph.save(part / GRAPH)


def dots(rows: Vectors, vector: Vectors) -> Vectors:
    """Return the dot product of each row with a vector, or with the corresponding row of a matrix.

    It does not use BLAS, because the threads of BLAS would occupy the cores that the embedding model needs.
    """
    products: Vectors = (rows * vector).sum(axis=-1)
    return products


def _as_int8(vectors: npt.ArrayLike) -> npt.NDArray[np.int8]:
    """Scale vectors to integers from -127 to 127. The lengths change, which does not affect cosine similarity."""
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
    """Import the package usearch. Raises UnavailableError if it is not installed."""
    try:
        import usearch.index
    except ModuleNotFoundError:
        raise UnavailableError("--embeddings: usearch is not installed; run `pip install usearch`") from None
    return usearch
