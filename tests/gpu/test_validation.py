"""A validation on stand-in GPUs: all share it, and the host reads one number of the likelihood."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from chatbot.training.devices.gpus import find_gpus
from chatbot.training.devices.towers import choose_gpus, open_towers
from tests.gpu import standin
from tests.gpu.process import on_standins

pytestmark = pytest.mark.gpu
CHAT_FILE = Path(__file__).parents[1] / "data/chat.tsv"


def validations() -> list[dict[str, Any]]:
    """Return the values and replies of a validation on one GPU and on all, and what each did for the likelihood."""
    from tests.training.test_validator import validators

    towers = open_towers(choose_gpus(None, None, find_gpus()), None)
    found = []
    with TemporaryDirectory() as folder:
        of_groups, corpus = validators(Path(folder), CHAT_FILE, towers[:1], towers)
        for validator in of_groups:
            validator._score.positions = 300  # several batches for each
            validation = validator.validate(corpus)
            before = [standin.counts(i) for i in range(len(towers))]
            validator._score(corpus.shards)
            counts = [standin.counts(i).since(earlier) for i, earlier in enumerate(before)]
            found.append({"values": validation.values, "replies": validation.replies, "counts": counts})
    return found


def test_validation_goes_on_where_memory_runs_out_on_one_gpu(tmp_path: Path) -> None:
    alone, shared = on_standins(validations, tmp_path, 2, faults="memory gpu=1 operation=Log")
    assert shared["values"] == pytest.approx(alone["values"], rel=1e-6)
    assert [counts.kernels > 0 for counts in shared["counts"]] == [True, False]


def test_gpus_share_a_validation(tmp_path: Path) -> None:
    alone, shared = on_standins(validations, tmp_path, 3)
    assert shared["values"] == pytest.approx(alone["values"], rel=1e-6)
    assert shared["replies"] == alone["replies"]
    assert [counts.kernels > 0 for counts in alone["counts"]] == [True, False, False]
    kernels = [counts.kernels for counts in shared["counts"]]
    assert max(kernels) < 1.5 * min(kernels)
    for found in (alone, shared):
        assert [counts.device_to_host for counts in found["counts"]] == [1, 0, 0]
