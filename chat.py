#!/usr/bin/env python3
"""Talk to a trained chatbot: python chat.py --help."""

import sys

from chatbot.config.chat import chat_settings
from chatbot.errors import exit_code_of


def main() -> int:
    """Check the flags, then import TensorFlow, which takes seconds, load the model and talk."""
    settings = chat_settings()
    from chatbot.quiet import import_tensorflow, let_gpu_memory_grow

    import_tensorflow()
    let_gpu_memory_grow()
    from chatbot.chat.terminal import chat
    from chatbot.config.attempts import trained_directory
    from chatbot.inference.responder import Responder
    from chatbot.model.saved import load_trained

    trained = load_trained(trained_directory(settings.attempt))
    responder = Responder(trained, settings.beam_size, settings.length_penalty)
    return chat(responder, f"{settings.attempt} (step {trained.step:,})")


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
