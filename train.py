#!/usr/bin/env python3
"""Train a chatbot on question-answer pairs: python train.py --help."""

import sys

from chatbot.config.stored import train_settings
from chatbot.errors import exit_code_of


def main() -> int:
    """Settings, data, devices, training: TensorFlow is imported only when the first two are right."""
    settings = train_settings()
    from chatbot.training.attempt import attempt_lock
    from chatbot.training.data import prepare
    from chatbot.training.devices import choose_gpus, find_gpus, open_towers, table

    gpus = choose_gpus(settings.gpus, settings.towers, find_gpus())
    if settings.selftest:
        towers = open_towers(gpus, settings.towers or (2 if len(gpus) < 2 else None))
        print(table(towers))
        from chatbot.training.selftest import selftest

        return selftest([tower.device for tower in towers])
    if not gpus:
        print("NO GPU: training on the CPU, many times slower than on a GPU.", file=sys.stderr)
    data = prepare(settings)
    towers = open_towers(gpus, settings.towers, settings.log_device_placement)
    print(table(towers))
    from chatbot.training.trainer import train

    with attempt_lock(settings):
        return train(settings, data, towers)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
