"""The files of a checkpoint: equal to those of the format's own library, and refused in one line if made to harm."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save_file

from chatbot.attempts.checkpoint import (
    TYPES,
    group_sizes,
    read_group,
    read_pointer,
    verified_manifest,
    write_checkpoint,
)
from chatbot.errors import UserError

VALUES = np.ones((5, 7), np.float32)


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(["weights", "optimizer"]), st.lists(arrays.arrays(
    st.sampled_from(sorted(TYPES)), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
), max_size=12)))  # fmt: skip
def test_tensors_of_any_type_and_shape_are_read_by_the_library_and_here(
    tmp_path_factory: Any, tensors: dict[str, list[np.ndarray]]
) -> None:
    path = tmp_path_factory.mktemp("a") / "ckpt-3"
    write_checkpoint(path, {group: [value.T for value in values] for group, values in tensors.items()}, {"a": 1})
    named = {f"{group}/{i}": value.T for group, values in tensors.items() for i, value in enumerate(values)}
    read = load_file(path.with_name("ckpt-3.safetensors"))
    assert read.keys() == named.keys()
    for name, value in named.items():
        assert read[name].dtype == value.dtype
        np.testing.assert_array_equal(read[name], value)
    for group, values in tensors.items():
        for value, again in zip(values, read_group(path, group, [value.T.shape for value in values]), strict=True):
            np.testing.assert_array_equal(again, value.T)
        assert group_sizes(path)[group] == sum(value.size for value in values)
    manifest = verified_manifest(path)
    assert manifest["a"] == 1
    file = path.with_name("ckpt-3.json")
    file.write_text(json.dumps(dict(reversed(json.loads(file.read_text()).items()))))
    assert verified_manifest(path) == manifest, "the order of the keys does not matter"


def test_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "ckpt-3", {}, {})
    (tmp_path / "other").touch()
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


def entry(**changes: Any) -> dict[str, Any]:
    """What the header says of the tensor."""
    return {"dtype": "F32", "shape": [5, 7], "data_offsets": [0, VALUES.nbytes], **changes}


def file_of(header: Any, length: int | None = None) -> bytes:
    """A file of this header and the values."""
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + VALUES.tobytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        VALUES.tobytes(),
        file_of({"weights/0": entry()})[:-1],
        file_of({"weights/0": entry()}) + b"x",
        file_of({"weights/0": entry()}, length=2**63),
        file_of({"weights/0": entry()}, length=5),
        *(file_of({"weights/0": entry(shape=shape)}) for shape in ([-5, -7], [2**40] * 2, [2**62, 0], [1] * 300, "x")),
        *(file_of({"weights/0": entry(data_offsets=offsets)}) for offsets in ([0, 2**62], [-4, 136], [4, 140], [9, 0])),
        *(file_of({"weights/0": entry(dtype=kind)}) for kind in ("U32", "BF16", "F8_E5M2", "O", 7)),
        file_of({"weights/0": entry(), "weights/1": entry()}),
        file_of({"weights/1": entry()}),
        file_of({"weights/x": entry()}),
        file_of({"weights/0": entry(shape=[7, 5])}),
        file_of({}),
        file_of([]),
        file_of({"weights/0": []}),
    ],
)
def test_malicious_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ckpt-1.safetensors").write_bytes(content)
    with pytest.raises(UserError, match=r"ckpt-1: checkpoint damaged.*restore it from a backup") as error:
        read_group(tmp_path / "ckpt-1", "weights", [(5, 7)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "content",
    [
        *("", "[", "[]", "3", '{"step": 3}', '{"checkpoint": "ckpt-3"}', '{"checkpoint": 3, "step": 3}'),
        *('{"checkpoint": "ckpt-4", "step": 3}', '{"checkpoint": "ckpt--3", "step": -3}'),
        *('{"checkpoint": "ckpt-3.0", "step": 3.0}', '{"checkpoint": "ckpt-True", "step": true}'),
    ],
)
def test_pointer_that_names_no_checkpoint_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "last"
    path.write_text('{"checkpoint": "ckpt-3", "step": 3, "a": 1}')
    assert read_pointer(path) == {"checkpoint": "ckpt-3", "step": 3, "a": 1}
    path.write_text(content)
    with pytest.raises(UserError, match="last: damaged, it does not name a checkpoint"):
        read_pointer(path)


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("weights/0", VALUES.astype(bool), "one of its weights has dtype BOOL"),
        ("weights/0", VALUES.T.copy(), r"one of its weights has shape \(7, 5\), not \(5, 7\)"),
        ("weights/1", VALUES, "it contains 2 weights, not 1"),
        ("z", VALUES, "it contains 0 weights, not 1"),
    ],
)
def test_tensors_of_another_model_are_not_read(tmp_path: Path, name: str, tensor: np.ndarray, reason: str) -> None:
    tensors = {name: tensor} if name != "weights/1" else {"weights/0": VALUES, name: tensor}
    save_file(tensors, tmp_path / "ckpt-1.safetensors")
    with pytest.raises(UserError, match=reason):
        read_group(tmp_path / "ckpt-1", "weights", [(5, 7)])
