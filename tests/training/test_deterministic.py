"""--deterministic turns on TensorFlow's switch, under which every variable update still runs."""

import subprocess
import sys

import pytest

from chatbot.config.training import Settings
from chatbot.errors import UserError
from chatbot.flags import compose
from tests.commands import ENVIRONMENT, ROOT

UPDATES = "parameter_server", "replicated", "independent"
# In a new process, since the switch cannot be turned off again.
PROGRAM = """
import sys
from chatbot.flags import replace
from chatbot.training.start import open_and_print_towers
from chatbot.config.training import Settings
towers = open_and_print_towers(replace(Settings(), deterministic=True, towers=2), [])
from tensorflow.python.framework import config
from chatbot.training.selftest import SETTINGS, random_pairs, train_model
print("deterministic", config.is_op_determinism_enabled())
for update in sys.argv[1:]:
    settings = replace(SETTINGS, variable_update=update, keep_prob=0.8)
    train_model(settings, towers, random_pairs(20, 1), steps=2)
    print("trained with", update)
"""


def output(*arguments: str) -> list[str]:
    """The lines that PROGRAM prints."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    completed = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.splitlines()


def test_every_variable_update_runs_deterministically() -> None:
    lines = output(*UPDATES)
    assert lines[-4:] == ["deterministic True", *(f"trained with {update}" for update in UPDATES)]


def test_asynchronous_updates_are_not_deterministic() -> None:
    with pytest.raises(UserError, match="--asynchronous and --deterministic exclude each other"):
        compose(Settings, asynchronous=True, deterministic=True)
