"""The gradients of a batch, without an update."""

from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.model.seq2seq import Seq2Seq, embedding_index
from chatbot.training.gradients import dense
from chatbot.training.share import Prepared
from chatbot.training.variable_update.synchronous import Synchronous


def mean_gradients(update: Synchronous, model: Seq2Seq, prepared: Prepared) -> list[npt.NDArray[Any]]:
    """Return the mean gradient per target token of a batch over the towers of this process.

    They are in the order of model.trainable_variables. No weight changes, and nothing is exchanged. The first call may
    trace a graph.
    """
    towers, _ = update.compute_all_gradients(prepared)
    shape = model.embedding.embeddings.shape
    tokens = sum(float(sums.weight) for sums in towers)
    gradients = [sum(map(np.asarray, terms)) for terms in zip(*(sums.others for sums in towers), strict=True)]
    embedding = sum(np.asarray(dense(sums.projection, sums.rows, prepared.used, shape)) for sums in towers)
    gradients.insert(embedding_index(model), embedding)
    return [np.asarray(gradient) / tokens for gradient in gradients]
