"""The index of a checkpoint: read as TensorFlow reads it, and refused where TensorFlow would end the process."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from chatbot.errors import UserError
from chatbot.model.checkpoint_index import Stored, read_index
from chatbot.model.index_table import FOOTER, LONGEST_KEY, MAGIC
from chatbot.model.saved import read_values

NAME = b"weights/0/.ATTRIBUTES/VARIABLE_VALUE"
VALUES = np.ones((5, 7), np.float32)


def number(value: int) -> bytes:
    """7 bits a byte, the lowest first."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + number(value >> 7)


def block(entries: list[tuple[bytes, bytes]], restarts: tuple[int, ...] = (0,)) -> bytes:
    """A block of a table."""
    parts = [number(0) + number(len(key)) + number(len(value)) + key + value for key, value in entries]
    return b"".join(parts) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(
    data: bytes, kind: int = 0, handle: tuple[int, int] | None = None, at: tuple[int, int] | None = None
) -> bytes:
    """A table of one block of data. handle: what the index says of it. at: where the footer says the index is."""
    content = data + bytes([kind]) + bytes(4)
    index = block([(b"z", b"".join(map(number, handle or (0, len(data)))))])
    footer = b"".join(map(number, (0, 0, *(at or (len(content), len(index))))))
    return content + index + bytes(5) + footer.ljust(FOOTER - 8, b"\0") + struct.pack("<Q", MAGIC)


def header(shards: int = 1) -> tuple[bytes, bytes]:
    """The entry of the header."""
    return b"", BundleHeaderProto(num_shards=shards).SerializeToString()


def entry(shape: tuple[int, ...] = (5, 7), **fields: Any) -> tuple[bytes, bytes]:
    """The entry of the tensor."""
    message = BundleEntryProto(**{"dtype": 1, "size": VALUES.nbytes, **fields})
    for size in shape:
        message.shape.dim.add(size=size)
    return NAME, message.SerializeToString()


WHOLE = block([header(), entry()])
LONG = block([header(), (NAME, entry()[1]), (b"x" * (LONGEST_KEY + 1), entry()[1])])


@pytest.mark.parametrize(
    "content",
    [
        table(block([header(), entry((10**6, 10**6), size=4 * 10**12)])),
        table(block([header(), entry((2**40, 2**40))])),
        table(block([header(), entry((2**62, 2**62, 0))])),
        table(block([header(), entry((-5, -7))])),
        table(block([header(), entry((1,) * 255)])),
        table(block([header(), entry(size=2**60)])),
        table(block([header(), entry(size=-1)])),
        table(block([header(), entry(offset=2**62)])),
        table(block([header(), entry(offset=-50)])),
        table(block([header(), entry(shard_id=1)])),
        table(block([header(), entry(shard_id=-1)])),
        table(block([header(2**31 - 1), entry()])),
        table(block([header(-1), entry()])),
        table(block([entry()])),
        *(table(block([header(), entry(dtype=dtype)])) for dtype in (20, 21, 101, 9999)),
        table(block([header(), (NAME, b"\xff\xff\xff")])),
        table(block([header(), entry(), entry()])),
        table(block([header(), (b"\xff", entry()[1])])),
        table(LONG),
        table(block([header(), entry()], (0, 3))),
        table(b"\x80" * 90 + WHOLE[-8:]),
        table(number(2**31) * 3 + WHOLE[-8:]),
        table(struct.pack("<I", 2**31)),
        table(b""),
        table(WHOLE, kind=1),
        table(WHOLE, handle=(0, 2**40)),
        table(WHOLE, handle=(2**63, 100)),
        table(WHOLE, at=(0, 2**63)),
        table(WHOLE, at=(2**64 - 1, 50)),
        table(WHOLE)[1:],
        table(WHOLE)[:-1],
        b"",
    ],
)
def test_index_that_was_made_to_harm_is_refused(tmp_path: Path, content: bytes) -> None:
    prefix = tmp_path / "ckpt-1"
    (tmp_path / "ckpt-1.data-00000-of-00001").write_bytes(VALUES.tobytes())
    (tmp_path / "ckpt-1.index").write_bytes(content)
    with pytest.raises(ValueError, match=r"^its index "):
        read_index(prefix)
    with pytest.raises(UserError, match="ckpt-1: checkpoint damaged, or not of these settings") as error:
        read_values(prefix, "weights", [(5, 7)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (entry(dtype=7), "one of its weights is of type string"),
        (entry((7, 5)), r"one of its weights has shape \(7, 5\), not \(5, 7\)"),
        ((NAME.replace(b"0", b"1"), entry()[1]), "it has more than 1 weights"),
        ((b"z", entry()[1]), "it has fewer than 1 weights"),
    ],
)
def test_tensors_of_another_model_are_not_read(tmp_path: Path, changed: tuple[bytes, bytes], reason: str) -> None:
    (tmp_path / "ckpt-1.data-00000-of-00001").write_bytes(VALUES.tobytes())
    (tmp_path / "ckpt-1.index").write_bytes(table(block([header(), changed])))
    with pytest.raises(UserError, match=reason):
        read_values(tmp_path / "ckpt-1", "weights", [(5, 7)])


def test_index_is_read_as_tensorflow_reads_it(tmp_path: Path) -> None:
    """Of two kinds of writers, with enough names for several restarts."""
    (tmp_path / "ckpt-1.data-00000-of-00001").write_bytes(VALUES.tobytes())
    (tmp_path / "ckpt-1.index").write_bytes(table(WHOLE))
    assert read_index(tmp_path / "ckpt-1") == {NAME.decode(): Stored(tf.float32, (5, 7))}
    values = [np.full((i % 5, 3), i, np.float32) for i in range(120)]
    names = [f"weights/{i}/.ATTRIBUTES/VARIABLE_VALUE" for i in range(len(values))]
    prefixes = [str(tmp_path / name) for name in ("operation", "checkpoint")]
    tf.raw_ops.SaveV2(prefix=prefixes[0], tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)
    tf.train.Checkpoint(weights=[tf.Variable(value) for value in values]).write(prefixes[1])
    for prefix in prefixes:
        found = read_index(Path(prefix))
        assert {name: list(stored.shape) for name, stored in found.items()} == (
            tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
        )
        for value, again in zip(values, read_values(Path(prefix), "weights", [v.shape for v in values]), strict=True):
            np.testing.assert_array_equal(value, again)
