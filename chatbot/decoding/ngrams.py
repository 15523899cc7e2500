"""The n-grams of a corpus of ids, with probabilities by interpolated modified Kneser-Ney smoothing.

Chen and Goodman (1999). Array operations count the n-grams of one length, a range of context numbers at a time.
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
from chatbot.errors import UserError

Ids = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

# The exceptions of NumPy and zipfile for a file that is truncated or overwritten.
UNREADABLE = (ValueError, LookupError, EOFError, RuntimeError, zlib.error, struct.error, zipfile.BadZipFile)

# A context is one number: the sum of its ids times powers of this, modulo 2 ** 64. Two contexts of a corpus with ten
# million contexts have the same number with a probability of 1 in 400,000.
MULTIPLIER = -7046029254386353131

# Rows of ids, and n-grams, that are handled at once.
ROWS_AT_ONCE = 1 << 12
GRAMS_AT_ONCE = 1 << 20

# Arrays of ids and probabilities are compressed to a half or a fifth, a file that was made to harm to a thousandth.
MOST_COMPRESSION = 100


@dataclasses.dataclass(frozen=True)
class Order:
    """The n-grams of one length, by context."""

    contexts: Ids  # [contexts] sorted, by `context_numbers`
    masses: Floats  # [contexts] the probability that is left to the next shorter context
    starts: Ids  # [contexts + 1] the first n-gram of each context
    ids: Ids  # [n-grams] the last id
    probabilities: Floats  # [n-grams] what an n-gram adds to the probability of its last id


@dataclasses.dataclass(frozen=True)
class Ngrams:
    """The n-grams of a corpus. The probability of an id: see `chatbot.decoding.ngram_mixture`."""

    unigrams: Floats  # [vocabulary] the probability of each id without a context
    orders: list[Order]  # of n-grams of 2 ids and up

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.orders) + 1

    def converted(self, convert: Callable[[Any], Any]) -> "Ngrams":
        """Return the n-grams with other arrays, such as tensors."""
        names = [field.name for field in dataclasses.fields(Order)]
        orders = [Order(*(convert(getattr(order, name)) for name in names)) for order in self.orders]
        return Ngrams(convert(self.unigrams), orders)

    def content(self) -> bytes:
        """Return the content of ngrams.npz, which `load_ngrams` reads."""
        arrays: dict[str, Any] = {"unigrams": self.unigrams}
        for number, order in enumerate(self.orders, 2):
            arrays |= {f"{field.name}_{number}": getattr(order, field.name) for field in dataclasses.fields(order)}
        file = io.BytesIO()
        np.savez_compressed(file, **arrays)
        return file.getvalue()


def load_ngrams(path: Path, vocabulary_size: int, order: int) -> Ngrams:
    """Read what `Ngrams.content` returned. Raises UserError for a missing or damaged file, and for other n-grams."""
    try:
        with path.open("rb") as file:
            _check_sizes(file)
            arrays = np.load(file, allow_pickle=False)
            names = [field.name for field in dataclasses.fields(Order)]
            orders = [Order(*(arrays[f"{name}_{n}"] for name in names)) for n in range(2, order + 1)]
            ngrams = Ngrams(arrays["unigrams"], orders)
        if not _is_whole(ngrams, vocabulary_size):
            raise ValueError("not of this vocabulary")
    except (*UNREADABLE, OSError) as error:
        raise UserError(
            f"{path}: n-grams missing or damaged ({str(error) or type(error).__name__}); restore it from a backup, or "
            "train again under another --attempt"
        ) from None
    return ngrams


def _check_sizes(file: BinaryIO) -> None:
    """Raise ValueError when an array of an .npz file is larger than its file could hold, before any is read."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > MOST_COMPRESSION * os.fstat(file.fileno()).st_size:
            raise ValueError("it is compressed too much")
        for member in members:
            with archive.open(member) as array:
                version = np.lib.format.read_magic(array)
                header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                shape, _, dtype = header[version](array)
                elements = member.file_size - array.tell()
            if len(shape) != 1 or dtype.kind not in "if" or shape[0] * dtype.itemsize != elements:
                raise ValueError(f"{member.filename} is not an array of numbers of the size of its file")
    file.seek(0)


def _is_whole(ngrams: Ngrams, vocabulary_size: int) -> bool:
    """Return whether the arrays have the sizes of one another and of the vocabulary, and indices within them."""
    return len(ngrams.unigrams) == vocabulary_size and all(
        x.contexts.dtype == x.starts.dtype == x.ids.dtype == np.int64
        and len(x.contexts) == len(x.masses) == len(x.starts) - 1 > 0
        and len(x.ids) == len(x.probabilities) == x.starts[-1]
        and x.starts[0] == 0
        and bool((np.diff(x.starts) > 0).all())
        and 0 <= x.ids.min() <= x.ids.max() < vocabulary_size
        for x in ngrams.orders
    )


def ngrams_of(sequences: Iterable[Ragged], vocabulary_size: int, order: int) -> Ngrams:
    """Return the n-grams of all sequences of ids, each followed by EOS and preceded by BOS.

    order: the length of the longest n-grams, at least 2.
    """
    chunks = (
        positions_of(part.select(np.arange(first, min(first + ROWS_AT_ONCE, len(part)))), order)
        for part in sequences
        for first in range(0, len(part), ROWS_AT_ONCE)
    )
    parts = [(histories.astype(np.int32), ids.astype(np.int32)) for histories, ids in chunks]
    histories, ids = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    del parts
    orders: list[Order] = []
    for _ in range(order - 1):  # the longest first
        contexts, sizes, counts, histories, ids = _distinct(histories, ids)
        starts = np.append(0, np.cumsum(sizes))
        probabilities, masses = _smoothed(counts, starts)
        orders.insert(0, Order(contexts, masses.astype(np.float32), starts, ids.astype(np.int64), probabilities))
    counts = np.bincount(ids, minlength=vocabulary_size)
    probabilities, (mass,) = _smoothed(counts, np.array([0, vocabulary_size]))
    return Ngrams((probabilities + mass / vocabulary_size).astype(np.float32), orders)


def _distinct(histories: Int32s, ids: Int32s) -> tuple[Ids, Ids, Ids, Int32s, Int32s]:
    """Return the different n-grams, sorted by the numbers of their contexts, then by their last ids.

    They are: the contexts and the number of n-grams of each, [contexts]; how often each n-gram occurs, its history
    without the first id, and its last id, [n-grams]. So each different n-gram counts once for the n-gram without its
    first id. histories: [positions, ids before]. ids: [positions].
    """
    numbers = context_numbers(histories)
    ranges = len(ids) // GRAMS_AT_ONCE + 1
    sample = np.sort(numbers[:: max(1, len(ids) // (100 * ranges))])
    borders = sample[np.arange(1, ranges) * len(sample) // ranges]
    range_of = np.empty(len(ids), np.uint16)  # of each position, the range of its context
    for first in range(0, len(ids), GRAMS_AT_ONCE):
        part = slice(first, first + GRAMS_AT_ONCE)
        range_of[part] = np.searchsorted(borders, numbers[part], side="right")
    parts = []
    for number in range(ranges):
        places = np.flatnonzero(range_of == number)
        if len(places):
            places = places[np.lexsort((ids[places], numbers[places]))]  # stable: the first of equal ones stays first
            new_context = np.append(True, np.diff(numbers[places]) != 0)
            begins = np.flatnonzero(new_context | np.append(True, np.diff(ids[places]) != 0))  # of n-grams
            first_grams = np.flatnonzero(new_context[begins])
            counts = np.diff(begins, append=len(places))
            firsts = places[begins]
            sizes = np.diff(first_grams, append=len(begins))
            parts.append((numbers[firsts[first_grams]], sizes, counts, histories[firsts, 1:], ids[firsts]))
    del numbers, range_of
    contexts, sizes, counts, shorter, last = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return contexts, sizes, counts, shorter, last


def positions_of(sequences: Ragged, order: int) -> tuple[Ids, Ids]:
    """Return the ids before each id of the sequences, [positions, order - 1], and these ids, [positions].

    A sequence is preceded by BOS, and EOS is its last id.
    """
    lengths = sequences.lengths + 1
    places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids = np.insert(sequences.joined().astype(np.int64), np.cumsum(sequences.lengths), EOS)
    back = np.arange(order - 1, 0, -1)
    before = ids[np.maximum(np.arange(len(ids))[:, None] - back, 0)]
    return np.where(places[:, None] >= back, before, BOS), ids


def _smoothed(counts: npt.NDArray[Any], starts: Ids) -> tuple[Floats, npt.NDArray[np.float64]]:
    """Return the discounted probability of each n-gram, [n-grams], and the mass of each context, [contexts].

    counts: [n-grams]. starts: [contexts + 1], the first n-gram of each context.
    """
    numbers = np.maximum(np.bincount(np.minimum(counts, 5), minlength=6), 1)  # how many n-grams have each count
    ratio = numbers[1] / (numbers[1] + 2 * numbers[2])
    discounts = np.array([0.0] + [max(0.05, n - (n + 1) * ratio * numbers[n + 1] / numbers[n]) for n in (1, 2, 3)])
    taken = discounts[np.minimum(counts, 3)]
    totals = np.add.reduceat(counts, starts[:-1])  # [contexts]
    probabilities = np.maximum(counts - taken, 0.0) / np.repeat(totals, np.diff(starts))
    return probabilities.astype(np.float32), np.add.reduceat(taken, starts[:-1]) / totals


def context_numbers(histories: npt.NDArray[np.integer]) -> Ids:
    """Return one number for each row of ids, [positions]. histories: [positions, ids]."""
    numbers = np.zeros(len(histories), np.int64)
    for column in histories.T:
        numbers *= np.int64(MULTIPLIER)
        numbers += column
        numbers += 1
    return numbers


def histories_of(target_in: npt.NDArray[Any], order: int) -> Ids:
    """Return the ids before each target, [rows, target, order - 1]. target_in: [rows, target], begun by BOS or ASK."""
    rows, length = target_in.shape
    begun = target_in.astype(np.int64)
    begun[:, 0] = BOS  # the n-grams of both directions are the same
    padded = np.concatenate([np.full((rows, order - 2), BOS), begun], axis=1)
    return np.lib.stride_tricks.sliding_window_view(padded, order - 1, axis=1)[:, :length]
