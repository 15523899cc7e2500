"""The models that teach a run (--distil-from)."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from chatbot.config.training import Settings
from chatbot.model.distillation import Taught
from chatbot.model.saved import load_trained
from chatbot.model.seq2seq import Distillation, Seq2Seq
from chatbot.model.sequences import Sequences
from chatbot.training.teacher_attempts import teacher_directories


def distillation_of(settings: Settings) -> Distillation | None:
    """Load the best checkpoints of the teachers; None without. Raises UserError for a damaged one."""
    with tf.device("/CPU:0"):
        models = [load_trained(directory).model for _, directory in teacher_directories(settings)]
    return Distillation(models, settings.learning.distil_weight) if models else None


class Teachers:
    """The models of a distillation with weights on the device of the caller. They are not trained."""

    def __init__(self, models: Sequence[Seq2Seq]) -> None:
        self._models = models
        self._weights = [[(v, tf.identity(v.value)) for v in model.trainable_variables] for model in models]

    def __call__(self, source: Sequences, target_in: Sequences) -> Taught:
        """Return the mean of the distributions of the teachers, without dropout."""
        decoded_by_all = []
        for model, weights in zip(self._models, self._weights, strict=True):
            with keras.StatelessScope(weights):
                decoded_by_all.append(model.decoded(model.laid_out(source), model.laid_out(target_in)))

        def taught(part: slice | None) -> tf.Tensor:
            distributions = []
            for model, weights, decoded in zip(self._models, self._weights, decoded_by_all, strict=True):
                with keras.StatelessScope(weights):
                    distributions.append(model.probabilities(decoded.part(part)))
            return tf.add_n(distributions) / len(distributions)

        return taught
