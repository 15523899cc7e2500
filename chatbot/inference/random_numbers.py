"""The random numbers of sampling: a function of the seed and the question."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def uniform_numbers(
    seed: int, questions: Sequence[Sequence[int]], candidates: int, max_length: int
) -> npt.NDArray[np.float32]:
    """Return numbers in [0, 1), [questions, candidates, max_length].

    Those of a question do not depend on the others, and those of a candidate not on the number of candidates.

    seed: at least 0. questions: the ids of each.
    """
    numbers = (
        np.random.default_rng([seed, *question]).random((candidates, max_length), np.float32) for question in questions
    )
    return np.stack(list(numbers))
