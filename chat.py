#!/usr/bin/env python3
"""Talk to a trained chatbot: python chat.py --help."""

import sys

from chatbot.config import chat_settings
from chatbot.errors import exit_code_of


def main() -> int:
    """Flags, model, conversation: TensorFlow is imported only when the flags are right."""
    settings = chat_settings()
    from chatbot.quiet import import_tensorflow

    import_tensorflow()
    from chatbot.chat.responder import Responder
    from chatbot.chat.terminal import chat
    from chatbot.model.saved import load_trained

    trained = load_trained(settings.attempt)
    return chat(Responder(trained, settings.beam_size, settings.length_penalty), settings.attempt)


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
