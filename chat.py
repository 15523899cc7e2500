#!/usr/bin/env python3
"""Talk to a trained chatbot: python chat.py --help."""

import sys

from chatbot.commands import main

if __name__ == "__main__":
    sys.exit(main("chat"))
