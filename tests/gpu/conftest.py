"""Skips the tests marked gpu where TensorFlow sees no GPU."""

import pytest

from tests.gpu.process import why_no_gpu


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip before any fixture is set up."""
    if item.get_closest_marker("gpu") and (reason := why_no_gpu()):
        pytest.skip(reason)
