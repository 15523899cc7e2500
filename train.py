#!/usr/bin/env python3
"""Train a chatbot on question-answer pairs: python train.py --help."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("train"))
