"""What follows when a device runs out of memory: smaller pieces of each share, or an error that says why not."""

import tensorflow as tf
from tqdm import tqdm

from chatbot.errors import UserError

RESUME = "the last checkpoint is kept, and the same command resumes from it"


def more_pieces(
    error: tf.errors.ResourceExhaustedError,
    step: int,
    pieces: int,
    rows: int,
    first_time: bool,
    weights_intact: bool,
) -> int:
    """Return into how many pieces each share is split from now on: twice as many; the global batch stays the same.

    pieces: the number now. rows: of the largest share of the step. first_time: print that shares are split.
    weights_intact: False if the step may have updated some of the weights.
    Raises UserError when the weights may be updated in part, or a piece is a single pair already.
    """
    if not weights_intact:
        raise UserError(
            f"out of memory while the weights were updated, at step {step}; {RESUME}: first free memory on the device"
        ) from error
    if pieces >= rows:
        raise UserError(
            f"out of memory at step {step}, with one pair at a time; {RESUME} where there is more memory; "
            "for a smaller model, use a smaller --max-length, --rnn-size or --vocabulary-size and another --attempt"
        ) from error
    if first_time:
        tqdm.write(
            "Out of memory: each share is now split into pieces, computed one after another; the batch size stays the "
            "same. Shown once. --accumulate with a smaller --batch-size splits shares from the start."
        )
    return 2 * pieces
