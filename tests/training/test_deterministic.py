"""--deterministic turns on TensorFlow's switch, under which every variable update still runs."""

import subprocess
import sys

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


def test_every_variable_update_runs_deterministically() -> None:
    command = [sys.executable, "-c", PROGRAM, *UPDATES]
    completed = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    expected = ["deterministic True", *(f"trained with {update}" for update in UPDATES)]
    assert completed.stdout.splitlines()[-4:] == expected
