"""Fixtures of the tests of the chat in a terminal."""

from pathlib import Path

import pytest

from tests.training.small_run import train_small


@pytest.fixture(scope="package")
def attempt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an attempt of two steps."""
    folder = tmp_path_factory.mktemp("chat")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("pairs.tsv").write_text("你好\t你好呀\n吃了吗\t吃了\n")
        train_small(1, data=("pairs.tsv",), steps=2)
    return folder
