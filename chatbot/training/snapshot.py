"""A copy of all that a checkpoint holds, in the memory of the host, and its tensors on the disk."""

import dataclasses
import errno
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from chatbot.durable import sync
from chatbot.training.progress import Progress

FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The content of a checkpoint. tensors: arrays, or tensors on the host, by their names in the file."""

    progress: Progress
    best: bool
    tensors: dict[str, Any]

    def write_tensors(self, prefix: Path) -> None:
        """Write the files `prefix`.index and `prefix`.data-*, and wait until their content is on the disk.

        They have the names and the format of tf.train.Checkpoint, which takes variables only, one copy more.
        Raises OSError and tf.errors.OpError.
        """
        with tf.device("/CPU:0"):
            for name, value in self.tensors.items():
                self.tensors[name] = tf.convert_to_tensor(value)  # the array is freed
            names, tensors = list(self.tensors), list(self.tensors.values())
            tf.raw_ops.SaveV2(
                prefix=str(prefix), tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors
            )
        for file in prefix.parent.glob(f"{prefix.name}.*"):
            sync(file)


def is_finite(values: npt.NDArray[Any]) -> bool:
    """Return whether all elements are finite numbers, without an array of them."""
    return not values.size or bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def cause_of(error: tf.errors.OpError | OSError) -> tuple[bool, str]:
    """Return whether the disk is full, and the cause of an error of TensorFlow or of the system, in one line."""
    text: str = error.strerror or str(error) if isinstance(error, OSError) else error.message
    # TensorFlow writes "{{function_node ...}} PATH; CAUSE [Op:SaveV2]".
    reason = re.sub(r"\{\{.*?\}\}\s*|\s*\[Op:.*", "", text.strip().split("\n")[0]).rpartition("; ")[2][:150]
    full = getattr(error, "errno", None) in FULL or re.search("no space left|quota exceeded", reason, re.IGNORECASE)
    return bool(full), reason
