"""The shared optimizer: built once, fed the gradient of the whole global batch."""

import keras

from chatbot.config.training import Settings


def build_optimizer(settings: Settings, variables: list[keras.Variable]) -> keras.Optimizer:
    """The optimizer with its slots made. It clips nothing and sums nothing: towers.py has done both."""
    rate = float(settings.learning_rate)
    optimizer = {
        "adam": lambda: keras.optimizers.Adam(rate),
        "sgd": lambda: keras.optimizers.SGD(rate),
        "momentum": lambda: keras.optimizers.SGD(rate, momentum=0.9),
    }[settings.optimizer]()
    optimizer.build(variables)
    return optimizer
