"""The reaction to a device that is out of memory: smaller pieces of each share, or an error."""

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
    """Return the new number of pieces of each share, twice the old one. The global batch stays the same.

    pieces: the old number. rows: pairs in the largest share of the step. first_time: print that shares are split.
    weights_intact: False if the step may have updated some of the weights.
    Raises UserError if the weights may be updated in part, or if a piece is a single pair already.
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
