"""The index of a checkpoint, read without TensorFlow, is compared with TensorFlow's reader."""

from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from chatbot.attempts.variables import Variable, count, read_variables
from chatbot.errors import UserError

# More than the 16 entries after which the table writes a whole key again, and numbers of two digits.
SHAPES = [(), (3,), (2, 5), (300, 7), *[(1, number) for number in range(1, 30)]]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of weights and a state of the optimizer."""
    path = tmp_path_factory.mktemp("checkpoint") / "ckpt-7"
    weights = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    optimizer = [tf.Variable(tf.zeros([], tf.int64)), tf.Variable(tf.zeros([4, 4]))]
    tf.train.Checkpoint(weights=weights, optimizer=optimizer).write(str(path))
    return path


def test_index_equals_that_of_tensorflow(prefix: Path) -> None:
    variables = read_variables(prefix)
    expected = tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map()
    found = {f"{v.group}/{v.number}/.ATTRIBUTES/VARIABLE_VALUE": list(v.shape) for v in variables}
    assert found == {name: shape for name, shape in expected.items() if name != "_CHECKPOINTABLE_OBJECT_GRAPH"}
    assert [v.shape for v in variables if v.group == "weights"] == SHAPES  # in the order of their numbers
    assert variables[0] == Variable("optimizer", 0, ())
    assert (count(variables, "weights"), count(variables, "optimizer")) == (1 + 3 + 10 + 2100 + 435, 17)


@given(place=st.integers(0, 5000), replacement=st.binary(max_size=3), cut=st.booleans())
@settings(max_examples=300)
def test_damaged_index_is_a_user_error_or_read(prefix: Path, place: int, replacement: bytes, cut: bool) -> None:
    content = Path(f"{prefix}.index").read_bytes()
    place %= len(content)
    damaged = prefix.with_name("damaged")
    rest = b"" if cut else content[place + len(replacement) :]
    Path(f"{damaged}.index").write_bytes(content[:place] + replacement + rest)
    for data in prefix.parent.glob("ckpt-7.data*"):
        copy = prefix.with_name(data.name.replace("ckpt-7", "damaged"))
        if not copy.exists():
            copy.write_bytes(data.read_bytes())
    try:
        variables = read_variables(damaged)
    except UserError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert count(variables, "weights") >= 0


def test_missing_or_short_files_are_named(prefix: Path, tmp_path: Path) -> None:
    copy = tmp_path / prefix.name
    with pytest.raises(UserError, match=r"ckpt-7\.index: missing"):
        read_variables(copy)
    Path(f"{copy}.index").write_bytes(Path(f"{prefix}.index").read_bytes())
    with pytest.raises(UserError, match=r"ckpt-7\.data-00000-of-00001: missing"):
        read_variables(copy)
    content = Path(f"{prefix}.data-00000-of-00001").read_bytes()
    Path(f"{copy}.data-00000-of-00001").write_bytes(content[:-1])
    with pytest.raises(UserError, match=rf"damaged, {len(content) - 1:,} of {len(content):,} bytes"):
        read_variables(copy)
