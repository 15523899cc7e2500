"""The folder of an attempt."""

from pathlib import Path

import pytest

from tests.training.checkpoints.step_checkpoints import DIRECTORY


@pytest.fixture
def directory(work_dir: Path) -> Path:
    """The empty folder of an attempt."""
    DIRECTORY.mkdir(parents=True)
    return DIRECTORY
