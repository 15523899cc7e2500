"""The reaction to a device that is out of memory: smaller pieces of each share, or an error.

After another failure of cuDNN, the step is first tried once more as it is: TensorFlow reports a lack of memory for the
workspace of a recurrent layer as it reports any other.
"""

import sys
from collections.abc import Sequence

import tensorflow as tf
from tqdm import tqdm

from chatbot.errors import DeviceError, UserError
from chatbot.training.devices import Tower
from chatbot.training.variable_update.device_failure import RESUME, device_failure

# Texts of an InternalError or UnknownError on a GPU that lacks memory, in lower case; TensorFlow 2.21 has them all.
# cuDNN's and cuBLAS's statuses are the first two. A failed copy to the device is the third
# (github.com/tensorflow/tensorflow/issues/60401); the allocators of cuDNN, CUDA and XLA write the others.
MEMORY_TEXTS = (
    "cudnn_status_alloc_failed",
    "cublas_status_alloc_failed",
    "dst tensor is not initialized",
    "failed to allocate",
    "out of memory",
    "resource_exhausted",
)
# Texts of any other failure of cuDNN, in lower case. Its recurrent kernels report all of theirs as the first two, and
# their status only in the log, as an error (issues/39453).
CUDNN_TEXTS = ("failed to call dornnforward", "failed to call dornnbackward", "cudnn_status_")


def is_out_of_memory(error: tf.errors.OpError, towers: Sequence[Tower] = ()) -> bool:
    """Return whether an error of a step is caused by a device that is out of memory.

    towers: an uncertain error is not, if one of their GPUs has failed.
    """
    return isinstance(error, tf.errors.ResourceExhaustedError) or _has(MEMORY_TEXTS, error, towers)


def is_cudnn_failure(error: tf.errors.OpError, towers: Sequence[Tower] = ()) -> bool:
    """Return whether an error of a step is a failure of cuDNN that is not known to be memory. towers: as above."""
    return _has(CUDNN_TEXTS, error, towers) and not is_out_of_memory(error, towers)


def _has(texts: Sequence[str], error: tf.errors.OpError, towers: Sequence[Tower]) -> bool:
    if not isinstance(error, tf.errors.InternalError | tf.errors.UnknownError):
        return False
    message = str(error).lower()
    return any(text in message for text in texts) and device_failure(error, towers) is None


def repeat_after(error: tf.errors.OpError, step: int, weights_intact: bool) -> None:
    """Print that a step in which cuDNN failed is computed once more.

    weights_intact: as for `more_pieces`. Raises DeviceError if the step cannot be repeated.
    """
    if not weights_intact:
        raise _failure("while the weights were updated, at", step, error) from error
    tqdm.write(
        f"Warning: cuDNN failed at step {step} ({reason_of(error)}); the step is tried once more.", file=sys.stderr
    )


def _failure(when: str, step: int, error: tf.errors.OpError) -> DeviceError:
    return DeviceError(
        f"cuDNN failed {when} step {step} ({reason_of(error)[:45]}); {RESUME}. The lines above have its status"
    )


def reason_of(error: tf.errors.OpError) -> str:
    """Return the first line of TensorFlow's message."""
    return str(error).strip().splitlines()[0][:150]


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
    Raises UserError if the weights may be updated in part, or if a piece is a single pair already; for a failure of
    cuDNN, the UserError is a DeviceError.
    """
    if not weights_intact:
        raise UserError(
            f"out of memory while the weights were updated, at step {step}; {RESUME}: first free memory on the device"
        ) from error
    of_cudnn = is_cudnn_failure(error)
    if of_cudnn and pieces >= rows:
        raise _failure("with one pair at a time, at", step, error) from error
    if pieces >= rows:
        # The cause of another error than ResourceExhaustedError is less certain, so the user sees its text.
        certain = isinstance(error, tf.errors.ResourceExhaustedError)
        raise UserError(
            f"out of memory at step {step}, with one pair at a time; {RESUME} where there is more memory, or start "
            "another --attempt with a smaller --rnn-size",
            details=() if certain else (reason_of(error),),
        ) from error
    if first_time:
        cause = "cuDNN failed again, perhaps for lack of memory" if of_cudnn else "Out of memory"
        tqdm.write(
            f"{cause}: each share is now split into pieces, computed one after another; the batch size stays the "
            "same. Shown once. --accumulate with a smaller --batch-size splits shares from the start."
        )
    return 2 * pieces
