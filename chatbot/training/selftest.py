"""The proof that many towers train as one device does, on the devices at hand.

Small models are trained twice, on all devices and on the first one alone, from the same weights and
on the same ragged batches, whose size the number of towers does not divide.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.corpus.batching.batches import Batches
from chatbot.corpus.encoding.encoded_pairs import EncodedPairs
from chatbot.corpus.encoding.ragged import Ragged
from chatbot.corpus.encoding.vocabulary import SPECIALS
from chatbot.errors import UserError
from chatbot.flags import compose, replace
from chatbot.model.seq2seq import built_model
from chatbot.training.devices import Tower
from chatbot.training.precision import AUTO
from chatbot.training.variable_update.choose import open_update
from chatbot.training.variable_update.synchronous import StepResult, Synchronous

STEPS = 10
TOLERANCE = 1e-5
VOCABULARY = 23
NEVER_CLIPPED, ALWAYS_CLIPPED = 1e9, 0.1
# Rates at which ten steps move the weights far more than the tolerance.
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

PROOFS = {
    "SGD": replace(SETTINGS, optimizer="sgd", learning_rate=1.0, max_gradient_norm=NEVER_CLIPPED),
    "Adam": replace(SETTINGS, max_gradient_norm=NEVER_CLIPPED),
    "Adam with clipping": replace(SETTINGS, max_gradient_norm=ALWAYS_CLIPPED),
}


def random_pairs(count: int, seed: int) -> EncodedPairs:
    """Pairs of ragged lengths whose few words repeat in each batch."""
    rng = np.random.default_rng(seed)
    sources, targets = (
        Ragged.from_rows([rng.integers(len(SPECIALS), VOCABULARY, rng.integers(1, 9)).tolist() for _ in range(count)])
        for _ in range(2)
    )
    return EncodedPairs.question_to_answer(sources, targets, targets.lengths)


def run(
    settings: Settings, towers: Sequence[Tower], pairs: EncodedPairs, steps: int = STEPS
) -> tuple[list[np.ndarray], list[StepResult], Synchronous]:
    """Train a new model; returns its weights, what each step returned, and what made the steps."""
    with tf.device(towers[0].device):
        precision = "float32" if settings.learning.precision == AUTO else settings.learning.precision
        model = built_model(settings.model, VOCABULARY, settings.learning.seed, precision)
    update = open_update(model, settings, towers)
    update.scatter_state(update.gather_state())
    batches = Batches(
        [pairs], settings.learning.batch_size * settings.learning.accumulate, settings.learning.seed
    ).shares_from(0, len(towers))
    for number in range(steps):
        update([tuple(map(tf.constant, share)) for share in next(batches)], number, settings.learning.learning_rate)
    update.gather_state()
    return [variable.numpy() for variable in model.trainable_variables], update.finished_steps(), update


def difference(settings: Settings, towers: Sequence[Tower]) -> float:
    """The largest difference of any weight between all towers and one device alone."""
    pairs = random_pairs(67, settings.learning.seed)
    many, _, _ = run(settings, towers, pairs)
    alone = dataclasses.replace(towers[0], parts=None)
    plain = replace(settings, variable_update=None, all_reduce="auto", local_parameter_device=None)
    one, _, _ = run(plain, [alone], pairs)
    return max(float(np.max(np.abs(a - b))) for a, b in zip(many, one, strict=True))


def masks_differ(towers: Sequence[Tower]) -> bool:
    """Whether towers that get the same pairs get different losses, as different dropout masks give."""
    pairs = random_pairs(1, 1).select([0] * len(towers))
    settings = replace(SETTINGS, keep_prob=0.5, batch_size=len(towers))
    _, (result,), _ = run(settings, towers, pairs, steps=1)
    losses = result.loss_sums.numpy().tolist()
    return len(set(losses)) == len(losses)


def every_pair_once(towers: int) -> bool:
    """Whether an epoch shows every pair to exactly one tower, once."""
    count = 67
    # Each pair is its own number, written with two tokens.
    rows = Ragged.from_rows([[5 + i % 8, 5 + i // 8] for i in range(count)])
    batches = Batches(
        [EncodedPairs.question_to_answer(rows, rows, rows.lengths)],
        SETTINGS.learning.batch_size,
        SETTINGS.learning.seed,
    )
    seen: Counter[tuple[int, ...]] = Counter()
    shares = batches.shares_from(0, towers)
    for _ in range(batches.steps_per_epoch):
        for share in next(shares):
            real = share.weights[:, 0] > 0
            seen.update(tuple(source.tolist()) for source in share.source[real])
    return len(seen) == count and set(seen.values()) == {1}


def selftest(asked: Settings, towers: Sequence[Tower]) -> int:
    """Print each proof and the verdict; returns the exit code, 0 when all hold. Raises UserError for one device.

    asked: the way of training in parallel to be proven.
    """
    if len(towers) < 2:
        raise UserError("--selftest compares many towers with one: give --towers 2 or more, or several GPUs")
    tf.config.experimental.enable_tensor_float_32_execution(False)
    passed = []

    def verdict(what: str, good: bool) -> None:
        passed.append(good)
        print(f"{'ok  ' if good else 'FAIL'}  {what}", flush=True)

    for name, proof in PROOFS.items():
        settings = dataclasses.replace(
            proof,
            parallel=dataclasses.replace(
                proof.parallel,
                variable_update=asked.parallel.variable_update,
                all_reduce=asked.parallel.all_reduce,
                local_parameter_device=asked.parallel.local_parameter_device,
            ),
        )
        apart = difference(settings, towers)
        verdict(
            f"{len(towers)} towers and 1 differ by {apart:.1e} after {STEPS} steps of {name}",
            apart < TOLERANCE,
        )
    verdict("towers draw different dropout masks", masks_differ(towers))
    verdict("every pair of an epoch is seen once, by one tower", every_pair_once(len(towers)))
    good = all(passed)
    print(f"Verdict: these devices {'train together as one' if good else 'do NOT train as one: do not use them'}.")
    return 0 if good else 1
