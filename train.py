#!/usr/bin/env python3
"""Train a chatbot on question-answer pairs: python train.py --help."""

import sys

from chatbot.config.stored import train_settings
from chatbot.errors import exit_code_of


def main() -> int:
    """TensorFlow is imported only when settings and data are right."""
    settings = train_settings()
    from chatbot.training.start import start

    return start(settings)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
