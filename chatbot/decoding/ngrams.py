"""Estimates n-gram probabilities with interpolated modified Kneser-Ney smoothing (Chen and Goodman, 1999).

N-grams are counted with array operations. Each operation processes only some of the contexts, which limits the memory.
"""

import dataclasses
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from chatbot.corpus.pair_ids import Ragged
from chatbot.corpus.vocabulary import BOS, EOS
from chatbot.decoding.array_functions import Array, Floats, Ids, functions_of
from chatbot.errors import UserError

Int32s = npt.NDArray[np.int32]

# The exceptions that NumPy and zipfile raise when they read a damaged file.
UNREADABLE = (ValueError, LookupError, EOFError, RuntimeError, zlib.error, struct.error, zipfile.BadZipFile)

# The base of the polynomial hash of a context, modulo 2 ** 64. The probability of any collision among ten million
# contexts is 1 in 400,000.
MULTIPLIER = -7046029254386353131

# The number of rows and the number of n-grams in a chunk.
ROW_CHUNK = 1 << 12
GRAM_CHUNK = 1 << 20

# The maximum compression ratio of an .npz file. It rejects zip bombs, whose ratio is about 1,000. N-grams have a ratio
# of 2 to 5.
MAX_COMPRESSION = 100


@dataclasses.dataclass(frozen=True)
class Order:
    """The n-grams of one length, grouped by context."""

    contexts: Ids  # sorted hashes of the contexts, see `context_numbers`, [contexts]
    masses: Floats  # weight of the distribution given the shortened context, [contexts]
    starts: Ids  # index of the first n-gram of each context, [contexts + 1]
    ids: Ids  # last id of each n-gram, [n-grams]
    probabilities: Floats  # discounted probability of each n-gram's last id, [n-grams]


@dataclasses.dataclass(frozen=True)
class Ngrams:
    """The n-grams of a corpus, from which `NgramMixture` computes the probability of the next token."""

    unigrams: Floats  # probability of each token without context, [vocabulary]
    orders: list[Order]  # bigrams, trigrams, and so on

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.orders) + 1

    def converted(self, convert: Callable[[Any], Any]) -> "Ngrams":
        """Return a copy with each array converted, for example to a tensor."""
        names = [field.name for field in dataclasses.fields(Order)]
        orders = [Order(*(convert(getattr(order, name)) for name in names)) for order in self.orders]
        return Ngrams(convert(self.unigrams), orders)

    def content(self) -> bytes:
        """Serialise the n-grams as an .npz file, which `load_ngrams` can read."""
        arrays: dict[str, Any] = {"unigrams": self.unigrams}
        for number, order in enumerate(self.orders, 2):
            arrays |= {f"{field.name}_{number}": getattr(order, field.name) for field in dataclasses.fields(order)}
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        return file.getvalue()


def load_ngrams(path: Path, vocabulary_size: int, order: int) -> Ngrams:
    """Load n-grams from a file that contains the result of `Ngrams.content`.

    Args:
        path: The path of the .npz file.
        vocabulary_size: The expected size of the vocabulary.
        order: The expected length of the longest n-grams.

    Raises:
        UserError: The file is missing or damaged, or belongs to another attempt.
    """
    try:
        with path.open("rb") as file:
            _check_sizes(file)
            arrays = np.load(file)
            names = [field.name for field in dataclasses.fields(Order)]
            orders = [Order(*(arrays[f"{name}_{n}"] for name in names)) for n in range(2, order + 1)]
            ngrams = Ngrams(arrays["unigrams"], orders)
        if not _is_consistent(ngrams, vocabulary_size):
            raise ValueError("its arrays do not fit the vocabulary")
    except (*UNREADABLE, OSError) as error:
        raise UserError(
            f"{path}: n-grams missing or damaged ({str(error) or type(error).__name__}); restore the file from a "
            "backup, or train again under another --attempt"
        ) from None
    return ngrams


def _check_sizes(file: BinaryIO) -> None:
    """Raise ValueError if the arrays of an .npz file are implausibly large. Only their headers are read."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > MAX_COMPRESSION * os.fstat(file.fileno()).st_size:
            raise ValueError("its compression ratio is implausible")
        for member in members:
            with archive.open(member) as array:
                version = np.lib.format.read_magic(array)
                header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = header[version](array)
                elements = member.file_size - array.tell()
            if len(shape) != 1 or dtype.kind not in "if" or shape[0] * dtype.itemsize != elements:
                raise ValueError(f"{member.filename} is not a numeric vector of the expected size")
    file.seek(0)


def _is_consistent(ngrams: Ngrams, vocabulary_size: int) -> bool:
    """Return whether the array sizes are consistent and all indices are within range."""
    return len(ngrams.unigrams) == vocabulary_size and all(
        x.contexts.dtype == x.starts.dtype == x.ids.dtype == np.int64
        and len(x.contexts) == len(x.masses) == len(x.starts) - 1 > 0
        and len(x.ids) == len(x.probabilities) == x.starts[-1]
        and x.starts[0] == 0
        and bool((np.diff(x.starts) > 0).all())
        and 0 <= x.ids.min() <= x.ids.max() < vocabulary_size
        for x in ngrams.orders
    )


def count_ngrams(sequences: Iterable[Ragged], vocabulary_size: int, order: int) -> Ngrams:
    """Count the n-grams of a corpus, and estimate their probabilities. BOS and EOS are added to each sequence.

    Args:
        sequences: Parts of the corpus, each with several sequences without BOS and EOS.
        vocabulary_size: The size of the vocabulary.
        order: The length of the longest n-grams, at least 2.
    """
    chunks = (
        positions_of(part.select(np.arange(first, min(first + ROW_CHUNK, len(part)))), order)
        for part in sequences
        for first in range(0, len(part), ROW_CHUNK)
    )
    parts = [(histories.astype(np.int32), ids.astype(np.int32)) for histories, ids in chunks]
    histories, ids = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    del parts
    orders: list[Order] = []
    for _ in range(order - 1):  # from the longest n-grams to bigrams
        contexts, sizes, counts, histories, ids = _distinct_ngrams(histories, ids)
        starts = np.append(0, np.cumsum(sizes))
        probabilities, masses = _smooth(counts, starts)
        orders.insert(0, Order(contexts, masses.astype(np.float32), starts, ids.astype(np.int64), probabilities))
    counts = np.bincount(ids, minlength=vocabulary_size)
    probabilities, (mass,) = _smooth(counts, np.array([0, vocabulary_size]))
    return Ngrams((probabilities + mass / vocabulary_size).astype(np.float32), orders)


def _distinct_ngrams(histories: Int32s, ids: Int32s) -> tuple[Ids, Ids, Ids, Int32s, Int32s]:
    """Return the distinct n-grams, sorted by the hash of their context and then by their last id.

    The histories are also returned without their first id, because Kneser-Ney smoothing counts shorter n-grams once for
    each distinct longer n-gram.

    Args:
        histories: The previous ids at each position, with shape [positions, ids].
        ids: The id at each position, with shape [positions].

    Returns:
        For each context, its hash and its number of n-grams, [contexts]. For each n-gram, its count, its history
        without the first id, and its last id, [n-grams].
    """
    numbers = context_numbers(histories)
    ranges = len(ids) // GRAM_CHUNK + 1
    sample = np.sort(numbers[:: max(1, len(ids) // (100 * ranges))])
    boundaries = sample[np.arange(1, ranges) * len(sample) // ranges]
    range_of = np.empty(len(ids), np.uint16)  # range of contexts that contains each position's context
    for first in range(0, len(ids), GRAM_CHUNK):
        part = slice(first, first + GRAM_CHUNK)
        range_of[part] = np.searchsorted(boundaries, numbers[part], side="right")
    parts = []
    for number in range(ranges):
        order = np.flatnonzero(range_of == number)
        if len(order):
            order = order[np.lexsort((ids[order], numbers[order]))]  # The sort is stable for equal n-grams.
            new_context = np.append(True, np.diff(numbers[order]) != 0)
            starts = np.flatnonzero(new_context | np.append(True, np.diff(ids[order]) != 0))  # starts of n-grams
            first_grams = np.flatnonzero(new_context[starts])
            counts = np.diff(starts, append=len(order))
            firsts = order[starts]
            sizes = np.diff(first_grams, append=len(starts))
            parts.append((numbers[firsts[first_grams]], sizes, counts, histories[firsts, 1:], ids[firsts]))
    del numbers, range_of
    contexts, sizes, counts, shorter, last = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return contexts, sizes, counts, shorter, last


def positions_of(sequences: Ragged, order: int) -> tuple[Ids, Ids]:
    """Return the context and the id at each position of sequences, including their EOS.

    Args:
        sequences: The sequences without BOS and EOS.
        order: The length of the n-grams, which is the length of a context plus one.

    Returns:
        The contexts, with shape [positions, order - 1], and the ids, with shape [positions].
    """
    lengths = sequences.lengths + 1
    positions = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids = np.insert(sequences.joined().astype(np.int64), np.cumsum(sequences.lengths), EOS)
    back = np.arange(order - 1, 0, -1)
    before = ids[np.maximum(np.arange(len(ids))[:, None] - back, 0)]
    return np.where(positions[:, None] >= back, before, BOS), ids


def _smooth(counts: npt.NDArray[Any], starts: Ids) -> tuple[Floats, npt.NDArray[np.float64]]:
    """Apply Kneser-Ney discounts to the counts of n-grams.

    Args:
        counts: The count of each n-gram, with shape [n-grams].
        starts: The index of the first n-gram of each context, with shape [contexts + 1].

    Returns:
        The discounted probability of each n-gram, [n-grams], and the remaining probability mass of each context,
        [contexts].
    """
    numbers = np.maximum(np.bincount(np.minimum(counts, 5), minlength=6), 1)  # number of n-grams with each count
    ratio = numbers[1] / (numbers[1] + 2 * numbers[2])
    discounts = np.array([0.0] + [max(0.05, n - (n + 1) * ratio * numbers[n + 1] / numbers[n]) for n in (1, 2, 3)])
    discounted = discounts[np.minimum(counts, 3)]
    totals = np.add.reduceat(counts, starts[:-1])  # [contexts]
    probabilities = np.maximum(counts - discounted, 0.0) / np.repeat(totals, np.diff(starts))
    return probabilities.astype(np.float32), np.add.reduceat(discounted, starts[:-1]) / totals


def context_numbers(histories: Array) -> Array:
    """Hash each row of ids [positions, ids] to a number, [positions] int64."""
    functions = functions_of(histories)
    numbers = functions.int64(functions.zeros_like(histories[:, 0]))
    for column in range(histories.shape[1]):  # TensorFlow has no GPU kernel to unstack int64 tensors.
        numbers *= np.int64(MULTIPLIER)
        numbers += histories[:, column]
        numbers += 1
    return numbers


def target_histories(target_in: npt.NDArray[Any], order: int) -> Ids:
    """Return the n-gram context of each target token, with shape [rows, target, order - 1].

    Args:
        target_in: Decoder inputs, which start with BOS or ASK, with shape [rows, target].
        order: The length of the n-grams, which is the length of a context plus one.
    """
    rows, length = target_in.shape
    ids = target_in.astype(np.int64)
    ids[:, 0] = BOS  # Replies and questions use the same n-grams.
    padded = np.concatenate([np.full((rows, order - 2), BOS), ids], axis=1)
    return np.lib.stride_tricks.sliding_window_view(padded, order - 1, axis=1)[:, :length]
