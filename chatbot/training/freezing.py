"""Parts of the model that are not trained (--freeze)."""

from chatbot.config.learning import LearningSettings
from chatbot.model.seq2seq import Seq2Seq


def trained_indices(model: Seq2Seq, settings: LearningSettings) -> list[int]:
    """Return the indices of the variables that are trained, among model.trainable_variables.

    The gradient function computes the gradients of the others, too: the update leaves them out. The projection is all
    that belongs to no other part: its bias, since the embedding is its matrix.
    """
    return [i for i, part in enumerate(part_names(model)) if part not in settings.frozen]


def part_names(model: Seq2Seq) -> list[str]:
    """Return the part of the model that each of model.trainable_variables belongs to, as --freeze names it."""
    part_of = {id(variable): "encoder" for variable in model.encoder.trainable_variables}
    part_of |= {id(variable): "decoder" for variable in model.decoder.trainable_variables}
    if model.decoder.attention is not None:
        part_of |= {id(variable): "attention" for variable in model.decoder.attention.trainable_variables}
    part_of[id(model.embedding.embeddings)] = "embedding"
    return [part_of.get(id(variable), "projection") for variable in model.trainable_variables]
