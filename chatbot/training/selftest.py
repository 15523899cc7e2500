"""--selftest: checks that training on several devices gives the same weights as training on one device."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.config.corpus import AUTO
from chatbot.config.model import TRANSFORMER, ModelSettings
from chatbot.config.training import Settings
from chatbot.corpus.batches import Batches
from chatbot.corpus.pair_ids import EncodedPairs, Ragged
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.errors import UserError
from chatbot.flags import compose, replace
from chatbot.training.devices.towers import Tower
from chatbot.training.new_model import build_model
from chatbot.training.step import Synchronous
from chatbot.training.update import open_update
from chatbot.training.variable_update import StepResult

STEPS = 10
TOLERANCE = 1e-5
VOCABULARY = 23
NEVER_CLIPPED = 1e9
ALWAYS_CLIPPED = 0.1
# The learning rates are so high that ten steps change the weights by far more than the tolerance.
SETTINGS = compose(
    Settings,
    rnn_size=16,
    embedding_size=12,
    bidirectional=False,
    keep_prob=1.0,
    batch_size=19,
    seed=3,
    learning_rate=0.03,
)

CASES = {
    "SGD": replace(SETTINGS, optimizer="sgd", learning_rate=1.0, max_gradient_norm=NEVER_CLIPPED),
    "Adam": replace(SETTINGS, max_gradient_norm=NEVER_CLIPPED),
    "Adam with clipping": replace(SETTINGS, max_gradient_norm=ALWAYS_CLIPPED),
    "Adam with a Transformer": replace(
        SETTINGS,
        architecture=TRANSFORMER,
        rnn_size=ModelSettings.rnn_size,
        bidirectional=ModelSettings.bidirectional,
        heads=2,
        feed_forward_size=24,
        max_gradient_norm=NEVER_CLIPPED,
        learning_rate=0.003,
    ),
}


def random_pairs(count: int, seed: int) -> EncodedPairs:
    """Return random pairs with 1 to 8 tokens per side. The vocabulary is small, so that tokens repeat in a batch."""
    rng = np.random.default_rng(seed)
    sources, targets = (
        Ragged.from_rows([rng.integers(len(SPECIALS), VOCABULARY, rng.integers(1, 9)).tolist() for _ in range(count)])
        for _ in range(2)
    )
    return EncodedPairs.question_to_answer(sources, targets, targets.lengths)


def train_model(
    settings: Settings, towers: Sequence[Tower], pairs: EncodedPairs, steps: int = STEPS
) -> tuple[list[np.ndarray], list[StepResult], Synchronous]:
    """Train a new model for a few steps.

    Args:
        settings: The settings of the run.
        towers: The towers to train on.
        pairs: The training pairs.
        steps: The number of steps.

    Returns:
        The trained weights, the result of each step, and the training step.
    """
    with tf.device(towers[0].device):
        precision = "float32" if settings.learning.precision == AUTO else settings.learning.precision
        parts = towers[0].parts or ()
        model = build_model(settings.model, VOCABULARY, settings.learning.seed, precision, part_devices=parts)
    update = open_update(model, settings, towers)
    update.scatter_state(update.gather_state())
    learning = settings.learning
    batches = Batches([pairs], learning.batch_size * learning.accumulate, learning.seed).from_step(0, len(towers))
    for number in range(steps):
        update(update.prepare(next(batches), number), learning.learning_rate)
    update.gather_state()
    return [variable.numpy() for variable in model.trainable_variables], update.finished_steps(), update


def weight_difference(settings: Settings, towers: Sequence[Tower]) -> float:
    """Train the same model on all towers and on one device, and return the largest difference between their weights.

    Returns NaN if the comparison is meaningless, because a weight is NaN, an update was skipped, or training has not
    changed any weight.
    """
    pairs = random_pairs(67, settings.learning.seed)
    weights, results, _ = train_model(settings, towers, pairs)
    one_device = dataclasses.replace(towers[0], parts=None)
    one_device_settings = replace(settings, variable_update=None, all_reduce="auto", local_parameter_device=None)
    start, _, _ = train_model(one_device_settings, [one_device], pairs, steps=0)
    expected, expected_results, _ = train_model(one_device_settings, [one_device], pairs)
    changed = all(largest_difference(start, trained) > TOLERANCE for trained in (weights, expected))
    if not changed or not all(result.finite for result in (*results, *expected_results)):
        return math.nan
    return largest_difference(weights, expected)


def largest_difference(some: Sequence[npt.NDArray[Any]], others: Sequence[npt.NDArray[Any]]) -> float:
    """Return the largest absolute difference between two lists of arrays, or NaN if any element is NaN."""
    return float(np.max([np.max(np.abs(a - b)) for a, b in zip(some, others, strict=True)]))


def masks_differ(towers: Sequence[Tower]) -> bool:
    """Return whether towers use different dropout masks. If they do, their losses of the same pair differ."""
    pairs = random_pairs(1, 1).select([0] * len(towers))
    settings = replace(SETTINGS, keep_prob=0.5, batch_size=len(towers))
    _, (result,), _ = train_model(settings, towers, pairs, steps=1)
    losses = result.loss_sums.tolist()
    return all(map(math.isfinite, losses)) and len(set(losses)) == len(losses)


def sees_every_pair_once(towers: int) -> bool:
    """Return whether an epoch contains every pair exactly once over all towers."""
    count = 67
    # The two tokens of each source encode the index of the pair.
    rows = Ragged.from_rows([[5 + i % 8, 5 + i // 8] for i in range(count)])
    pairs = EncodedPairs.question_to_answer(rows, rows, rows.lengths)
    batches = Batches([pairs], SETTINGS.learning.batch_size, SETTINGS.learning.seed)
    occurrences: Counter[tuple[int, ...]] = Counter()
    for batch in itertools.islice(batches.from_step(0, towers), batches.steps_per_epoch):
        for share in batch.shares:
            is_real = share.weights[:, 0] > 0
            occurrences.update(tuple(source.tolist()) for source in share.source[is_real])
    return len(occurrences) == count and set(occurrences.values()) == {1}


def selftest(requested: Settings, towers: Sequence[Tower]) -> int:
    """Run all checks with the requested --variable-update, and print the results.

    Args:
        requested: The settings of the command.
        towers: The towers of this machine.

    Returns:
        The exit code: 0 if all checks have passed, else 1.

    Raises:
        UserError: If there is only one tower.
    """
    if len(towers) < 2:
        raise UserError("--selftest compares several towers with one; use --towers 2 or more, or several GPUs")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    results = []

    def report(check: str, passed: bool) -> None:
        results.append(passed)
        print(f"{'ok  ' if passed else 'FAIL'}  {check}", flush=True)

    names = "variable_update", "all_reduce", "local_parameter_device"
    chosen = {name: getattr(requested.parallel, name) for name in names}
    for name, case in CASES.items():
        difference = weight_difference(replace(case, **chosen), towers)
        after = f"after {STEPS} steps of {name}"
        if math.isnan(difference):
            reason = "a loss, a gradient or a weight is not finite, or no weight has changed"
            report(f"{len(towers)} towers and 1 cannot be compared {after}: {reason}", False)
        else:
            report(f"{len(towers)} towers and 1 differ by {difference:.1e} {after}", difference < TOLERANCE)
    report("towers draw different dropout masks", masks_differ(towers))
    report("every pair of an epoch is seen once, by one tower", sees_every_pair_once(len(towers)))
    verdict = "train together as one." if all(results) else "do NOT train as one: do not use them."
    print(f"Verdict: these devices {verdict}")
    return 0 if all(results) else 1
