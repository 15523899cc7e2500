"""The reaction to a device that is out of memory: smaller pieces of each share, or an error."""

from collections.abc import Sequence

import tensorflow as tf
from tqdm import tqdm

from chatbot.errors import UserError
from chatbot.training.devices import Tower
from chatbot.training.variable_update.device_failure import RESUME, device_failure

# Texts of an InternalError or UnknownError on a GPU that lacks memory, in lower case; TensorFlow 2.21 has them all.
# cuDNN's recurrent kernels report any failure as the first two, and their status only in the log: a batch that was too
# large gave CUDNN_STATUS_EXECUTION_FAILED (github.com/tensorflow/tensorflow/issues/39453). A failed copy to the device
# is the fourth (issues/60401); cuDNN's and XLA's allocators write the fifth and the last two.
MEMORY_TEXTS = (
    "failed to call dornnforward",
    "failed to call dornnbackward",
    "cudnn_status_alloc_failed",
    "dst tensor is not initialized",
    "failed to allocate",
    "out of memory",
    "resource_exhausted",
)


def is_out_of_memory(error: tf.errors.OpError, towers: Sequence[Tower] = ()) -> bool:
    """Return whether an error of a step is, or may be, caused by a device that is out of memory.

    towers: an uncertain error is not, if one of their GPUs has failed.
    """
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return True
    text = str(error).lower()
    if not isinstance(error, tf.errors.InternalError | tf.errors.UnknownError):
        return False
    return any(t in text for t in MEMORY_TEXTS) and device_failure(error, towers) is None


def more_pieces(
    error: tf.errors.OpError,
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
        # The cause of another error than ResourceExhaustedError is less certain, so the user sees its text.
        certain = isinstance(error, tf.errors.ResourceExhaustedError)
        reason = "" if certain else f" ({str(error).strip().splitlines()[0][:150]})"
        raise UserError(
            f"out of memory at step {step}, with one pair at a time{reason}; {RESUME} where there is more memory; "
            "for a smaller model, use a smaller --max-length, --rnn-size or --vocabulary-size and another --attempt"
        ) from error
    if first_time:
        tqdm.write(
            "Out of memory: each share is now split into pieces, computed one after another; the batch size stays the "
            "same. Shown once. --accumulate with a smaller --batch-size splits shares from the start."
        )
    return 2 * pieces
