"""The HParams page: the settings of all attempts side by side, with their losses and validations."""

from typing import Any

import tensorflow as tf
from tensorboard.plugins.hparams import summary_v2

from chatbot.config.training import Settings
from chatbot.flags import fields_of, flatten

Value = bool | float | str


def hyperparameters_summary(settings: Settings) -> Any:
    """Return the summary that makes a TensorBoard run a session of the page.

    TensorBoard finds the settings of all attempts by itself, and shows those first that differ between them.
    """
    summary = summary_v2.hparams_pb(hyperparameters(settings), trial_id=settings.run.attempt)
    return tf.compat.v1.Summary.FromString(summary.SerializeToString())  # from TensorBoard's class to TensorFlow's


def hyperparameters(settings: Settings) -> dict[str, Value]:
    """Return the settings that an attempt keeps, by name. A setting that is not given is left out."""
    values = flatten(settings)
    shown = {name: values[name] for name, field in fields_of(settings).items() if field.metadata["stored"]}
    del shown["attempt"]
    return {name: _value(value) for name, value in shown.items() if value not in (None, ())}


def _value(value: Any) -> Value:
    return " ".join(map(str, value)) if isinstance(value, tuple | list) else value
