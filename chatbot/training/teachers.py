"""Trained attempts as the teachers of a run (--distil-from)."""

from collections.abc import Sequence
from pathlib import Path

import keras
import tensorflow as tf

from chatbot.config.attempts import CONFIG, VOCABULARY, trained_directory
from chatbot.config.stored import stored_settings
from chatbot.config.training import Settings
from chatbot.corpus.encoding.vocabulary import Vocabulary, load_vocabulary
from chatbot.errors import UserError
from chatbot.model.copying import NO_COPIES, Copies
from chatbot.model.distillation import Taught
from chatbot.model.fast.projection import part_of
from chatbot.model.saved import load_trained
from chatbot.model.seq2seq import Distillation, Seq2Seq
from chatbot.model.sequences import Sequences


def check_teachers(settings: Settings, vocabulary: Vocabulary, both_directions: bool) -> None:
    """Raise UserError for a teacher that is missing, or has another vocabulary or fewer directions than the run."""
    for name, directory in _directories(settings):
        if load_vocabulary(directory / VOCABULARY).fingerprint() != vocabulary.fingerprint():
            raise UserError(
                f"--distil-from {name}: its vocabulary is not that of this run; train it on the same pairs with the "
                "same --vocabulary-size, --tokenizer, --clean and --validation"
            )
        if both_directions and stored_settings(directory / CONFIG).learning.both_directions == "off":
            raise UserError(
                f"--distil-from {name}: it learned replies only; add --both-directions off to a new attempt"
            )


def distillation_of(settings: Settings) -> Distillation | None:
    """Load the best checkpoints of the teachers; None without. Raises UserError for a damaged one."""
    with tf.device("/CPU:0"):
        models = [load_trained(directory).model for _, directory in _directories(settings)]
    return Distillation(models, settings.learning.distil_weight) if models else None


def _directories(settings: Settings) -> list[tuple[str, Path]]:
    """Return the name and the directory of each teacher."""
    directories = []
    for name in settings.learning.teachers:
        try:
            directory = trained_directory(name, "--distil-from")
        except UserError as error:
            raise UserError(f"{error}; --distil-weight 0 trains without teachers") from None
        if directory == settings.run.directory:
            raise UserError(f"--distil-from {name}: an attempt cannot teach itself; choose another --attempt")
        directories.append((name, directory))
    return directories


class Teachers:
    """The models of a distillation with weights on the device of the caller. They are not trained."""

    def __init__(self, models: Sequence[Seq2Seq]) -> None:
        self._models = models
        self._weights = [[(v, tf.identity(v.value)) for v in model.trainable_variables] for model in models]

    def __call__(self, source: Sequences, target_in: Sequences) -> Taught:
        """Return the mean of the distributions of the teachers, without dropout."""
        decoded = []
        for model, weights in zip(self._models, self._weights, strict=True):
            with keras.StatelessScope(weights):
                sequences = model.laid_out(source), model.laid_out(target_in)
                decoded.append((*model.attended(*sequences), model.question_ids(*sequences)))

        def taught(part: slice | None) -> tf.Tensor:
            distributions = []
            for model, weights, (attended, copies, question) in zip(self._models, self._weights, decoded, strict=True):
                of_part = Copies(*(part_of(x, part) for x in copies)) if copies else NO_COPIES
                with keras.StatelessScope(weights):
                    distributions.append(model.probabilities(part_of(attended, part), of_part, part_of(question, part)))
            return tf.add_n(distributions) / len(distributions)

        return taught
