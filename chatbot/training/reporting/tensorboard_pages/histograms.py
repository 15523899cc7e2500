"""The Histograms page: the weights and gradients of each layer (--histograms)."""

from typing import Any

import keras
import tensorflow as tf

from chatbot.config.run import ALL
from chatbot.model.seq2seq import Seq2Seq
from chatbot.training.run import Run
from chatbot.training.variable_update.batch_gradients import mean_gradients


def write_histograms(run: Run, model: Seq2Seq, step: int) -> None:
    """Write the weights that are validated and saved, with --histograms all also the gradients, by the default writer.

    The gradients are those of the batch of this step and of this machine's towers, a mean per target token before
    clipping, at the present weights.
    """
    names = names_of(model)
    for variable in model.trainable_variables:
        tf.summary.histogram(f"weights/{names[id(variable)]}", variable.value, step)
    if run.settings.run.histograms != ALL:
        return
    update: Any = run.train_step
    batch = next(run.batches.from_step(step - 1, update.num_shares, run.team.machine, run.team.machines))
    gradients = mean_gradients(update, model, update.prepare(batch, step - 1))
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        tf.summary.histogram(f"weight_gradients/{names[id(variable)]}", gradient, step)


def names_of(model: Seq2Seq) -> dict[int, str]:
    """Return the name of each variable by its id(): the attributes that lead to it, as in decoder/attention/key/kernel.

    Items of lists are counted from 1.
    """
    names: dict[int, str] = {}

    def visit(layer: keras.Layer, path: str) -> None:
        for name, value in vars(layer).items():
            if name.startswith("_"):
                continue
            items = (
                {f"{name}_{i}": item for i, item in enumerate(value, 1)} if isinstance(value, list) else {name: value}
            )
            for item_name, item in items.items():
                if isinstance(item, keras.Layer):
                    visit(item, f"{path}{item_name}/")
        for variable in layer.trainable_variables:
            names.setdefault(id(variable), path + variable.name)

    visit(model, "")
    return names
