"""`train.py --local-workers`, whose saves and validations take longer than a silent machine is waited for.

`python -m tests.training.machines.slow FLAGS` trains. It takes the flags of train.py.
"""

import functools
import sys
import time
from typing import Any

from chatbot.config.stored import train_settings
from chatbot.config.training import Settings
from chatbot.errors import exit_code_of
from chatbot.quiet import import_tensorflow
from chatbot.training import start
from chatbot.training.machines.peers import Peers

TIMEOUT, DURATION = 1.0, 4.0  # seconds
run_process = start.run_process


def run_slowly(settings: Settings) -> int:
    """Train in this process."""
    import_tensorflow()
    from chatbot.training.checkpoints import store
    from chatbot.training.validation import Validator

    def slow(function: Any) -> Any:
        def slow_function(*arguments: Any) -> Any:
            time.sleep(DURATION)
            return function(*arguments)

        return slow_function

    store.write_checkpoint = slow(store.write_checkpoint)
    Validator.validate = slow(Validator.validate)  # type: ignore[method-assign]
    start.Peers = functools.partial(Peers, timeout=TIMEOUT)  # type: ignore[misc, assignment]
    return run_process(settings)


def main() -> int:
    """Run train.py with slow worker processes."""
    start.run_process = run_slowly  # type: ignore[assignment]
    return start.start(train_settings(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
