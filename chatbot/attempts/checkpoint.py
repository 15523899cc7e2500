"""The files of a checkpoint, without TensorFlow.

    ckpt-<step>.safetensors   the tensors, named by group and number, such as weights/0
    ckpt-<step>.json          the manifest: the size and the checksum of that file, the progress, and provenance

The manifest is written last. A pointer, `last` or `best`, names a checkpoint. The path of a checkpoint is that of its
files without an ending.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash
from safetensors import SafetensorError, safe_open

from chatbot.attempts.files import BEST, LAST, VOCABULARY
from chatbot.config.model import TRANSFORMER, ModelSettings
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.durable import read_json, replacing, write_json
from chatbot.errors import UserError

REMEDY = "restore it from a backup, or train again under another --attempt"
AT_END = "nats_at_end"  # in `last`: the nats per character of its checkpoint, with which --time-limit ended
BLOCK = 1 << 20
# The types of tensors, by NumPy's names.
TYPES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64"}

Array = npt.NDArray[Any]
Content = TypeVar("Content")


class DamagedError(UserError):
    """A checkpoint is missing or damaged. Another one of the attempt may be whole."""

    def __init__(self, path: Path, what: str, reason: str) -> None:
        self.found = f"{path}: checkpoint {what} ({reason})"
        super().__init__(f"{self.found}; {REMEDY}")


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of a checkpoint of an attempt."""
    return directory / f"ckpt-{step}"


def step_of(path: Path) -> int:
    """Return the step of a checkpoint."""
    return int(path.name.removeprefix("ckpt-"))


def tensors_path(path: Path) -> Path:
    """Return the path of the tensors of a checkpoint."""
    return path.with_name(f"{path.name}.safetensors")


def manifest_path(path: Path) -> Path:
    """Return the path of the manifest of a checkpoint."""
    return path.with_name(f"{path.name}.json")


def saved_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints in a directory that were written to the end, the newest first."""
    names = [path.stem for path in directory.glob("ckpt-*.json") if re.fullmatch(r"ckpt-[0-9]{1,18}", path.stem)]
    return sorted((step_of(Path(name)) for name in names), reverse=True)


def read_pointer(path: Path) -> dict[str, Any]:
    """Read `last` or `best`: {"checkpoint": name, "step": number, ...}.

    Raises UserError for a missing or damaged file.
    """
    try:
        pointer = read_json(path)
        name = pointer["checkpoint"]
        step = pointer["step"]
        if type(step) is not int or name != f"ckpt-{step}" or step < 0:
            raise ValueError("no checkpoint of that name")
    except FileNotFoundError:
        if saved_steps(path.parent):
            raise UserError(f"{path}: missing, though there are checkpoints beside it; {REMEDY}") from None
        raise UserError(f"{path}: missing, no checkpoint was saved yet; train first") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged, it does not name a checkpoint; {REMEDY}") from None
    return pointer


def pointed_steps(directory: Path) -> dict[str, int]:
    """Return the steps that `last` and `best` name, as far as these files exist. Raises UserError for a damaged one."""
    return {name: read_pointer(directory / name)["step"] for name in (LAST, BEST) if (directory / name).exists()}


def better_last(directory: Path) -> float | None:
    """Return the nats per character of the last checkpoint if --time-limit ended with it and it is the better one.

    It decides nothing in training, where the chain of limits equals a run without them, but replies come from it.
    """
    try:
        pointer = read_pointer(directory / LAST)
    except UserError:
        return None
    nats = pointer.get(AT_END)
    best = pointer.get("best_nats")
    return nats if isinstance(nats, float) and isinstance(best, float) and nats < best else None


def first_whole(
    directory: Path, steps: Iterable[int], read: Callable[[Path], Content]
) -> tuple[int, Content, DamagedError | None]:
    """Return the first of some steps whose checkpoint can be read, what `read` returns of it, and the first damage.

    Raises DamagedError when none can be read.
    """
    damage: DamagedError | None = None
    for step in dict.fromkeys(steps):
        try:
            return step, read(checkpoint_path(directory, step)), damage
        except DamagedError as error:
            damage = damage or error
    assert damage is not None
    raise damage


def resumable_steps(directory: Path) -> list[int]:
    """Return the steps of an attempt in the order in which to try to resume them: `last`, then those before it."""
    steps = pointed_steps(directory)
    last = read_pointer(directory / LAST)["step"]
    return [last, *sorted({step for step in (*saved_steps(directory), *steps.values()) if step < last}, reverse=True)]


def write_checkpoint(path: Path, tensors: Mapping[str, Sequence[Array]], content: Mapping[str, Any]) -> None:
    """Write the files of a checkpoint, and wait until they are on the disk. Raises OSError.

    tensors: by group, of the TYPES. content: what the manifest has beside the checksum, values of JSON.
    """
    manifest_path(path).unlink(missing_ok=True)  # of a damaged checkpoint
    file = tensors_path(path)
    with replacing(file) as part:
        _write_tensors(part, {f"{group}/{i}": value for group in tensors for i, value in enumerate(tensors[group])})
    _write_manifest(path, {"files": {file.name: _checksum(file)}, **content})


def amend_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Write values of JSON into the manifest of a checkpoint. Raises OSError and DamagedError."""
    _write_manifest(path, {**verified_manifest(path), **content})


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    write_json(manifest_path(path), {**manifest, "checksum": _own_checksum(manifest)})


def _write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write a file in the format safetensors.

    The format's own library gives the file to its owner alone, and its errors have no number.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)  # all are aligned
    header = {}
    end = 0
    for name, value in ordered:
        begin = end
        end = end + value.nbytes
        header[name] = {"dtype": TYPES[value.dtype.name], "shape": value.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, value in ordered:
            file.write(np.ascontiguousarray(value).data)


def verified_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, whose tensors have its checksum. Raises DamagedError if they have not."""
    file = tensors_path(path)
    manifest_file = manifest_path(path)
    try:
        manifest = read_json(manifest_file)
        if manifest.pop("checksum") != _own_checksum(manifest):
            raise ValueError("it does not have its own checksum")
        size, checksum = (manifest["files"][file.name][key] for key in ("bytes", "xxh3_128"))
    except FileNotFoundError:
        raise DamagedError(path, "missing", f"no file {manifest_file.name}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(path, "damaged", f"{manifest_file.name}: {_one_line(error)}") from None
    try:
        size_on_disk = file.stat().st_size
        if size_on_disk != size:
            raise DamagedError(path, "damaged", f"{file.name} has {size_on_disk:,} bytes, not {size!s:.20}")
        if _checksum(file)["xxh3_128"] != checksum:
            raise DamagedError(path, "damaged", f"{file.name} does not have the checksum of {manifest_file.name}")
    except FileNotFoundError:
        raise DamagedError(path, "missing", f"no file {file.name}") from None
    except OSError as error:
        raise DamagedError(path, "damaged", f"{file.name}: {_one_line(error)}") from None
    return manifest


def group_sizes(path: Path) -> Counter[str]:
    """Return the number of values in each group of tensors, from the header of the file. Raises DamagedError."""
    sizes: Counter[str] = Counter()
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118  # it is no mapping
            sizes[name.partition("/")[0]] += prod(file.get_slice(name).get_shape())
    return sizes


def read_group(path: Path, group: str, shapes: Sequence[Sequence[int]] | None = None) -> list[Array]:
    """Read a group of tensors, such as "weights", in the order of their numbers.

    shapes: those that they must have, which are compared before any of them is read. Raises DamagedError.
    """
    with _opened(path) as file:
        names = [name for name in file.keys() if name.startswith(f"{group}/")]  # noqa: SIM118
        if shapes is not None and len(names) != len(shapes):
            raise ValueError(f"it has {len(names)} {group}, not {len(shapes)}")
        names = [f"{group}/{number}" for number in range(len(names))]
        tensors = [file.get_slice(name) for name in names]
        for tensor, shape in zip(tensors, shapes or [tensor.get_shape() for tensor in tensors], strict=True):
            if tuple(tensor.get_shape()) != tuple(shape):
                raise ValueError(f"one of its {group} has shape {tuple(tensor.get_shape())}, not {tuple(shape)}")
            if tensor.get_dtype() not in TYPES.values():
                raise ValueError(f"one of its {group} is of type {tensor.get_dtype()}")
        return [file.get_tensor(name) for name in names]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the tensors of a checkpoint. An error of the block is raised as a DamagedError."""
    try:
        with safe_open(tensors_path(path), "numpy") as file:
            yield file
    except FileNotFoundError:
        raise DamagedError(path, "missing", "no such file") from None
    except (SafetensorError, OSError) as error:
        reason = _one_line(error).removeprefix("Error while deserializing header: ")
        raise DamagedError(path, "damaged", reason) from None
    except ValueError as error:
        raise DamagedError(path, "damaged, or not of these settings", _one_line(error)) from None


def check_model_size(directory: Path, settings: ModelSettings, tokens: int = len(SPECIALS)) -> None:
    """Raise UserError when no checkpoint in a directory is as large as a model of these settings, before it is made.

    tokens: the size of the vocabulary, or less. The bound counts the matrices of the layers and of the output only.
    """
    size = settings.embedding_size
    of_layers = 2 * settings.rnn_size**2
    if settings.form is not None:
        of_layers = 0
    elif settings.architecture == TRANSFORMER:
        of_layers = 12 * size**2 + 4 * size * settings.feed_forward_size
    matrices = settings.num_layers * of_layers
    of_tokens = tokens * settings.embedding_size * (1 if settings.tied_embeddings else 2)
    least = 4 * (matrices + of_tokens)
    largest = largest_checkpoint(directory)
    if largest and least > largest:
        raise UserError(
            f"{directory}: checkpoint damaged, or not of these settings (a model of at least {least / 1e6:,.1f} MB, "
            f"and {largest / 1e6:,.1f} MB of data); {REMEDY}"
        )


def largest_checkpoint(directory: Path) -> int:
    """Return the bytes of the largest checkpoint in a directory; 0 without one."""
    return max((path.stat().st_size for path in directory.glob("ckpt-*.safetensors")), default=0)


def check_vocabulary(manifest: dict[str, Any], fingerprint: str, path: Path) -> None:
    """Raise UserError when a checkpoint was trained with another vocabulary. fingerprint: that of vocabulary.txt."""
    data = manifest.get("data")
    if isinstance(data, dict) and data.get("vocabulary", fingerprint) != fingerprint:
        raise UserError(
            f"{path.with_name(VOCABULARY)}: not the vocabulary that {path.name} was trained with, such as that of "
            "another attempt; restore it from a backup, or use another --attempt"
        )


def _checksum(path: Path) -> dict[str, Any]:
    checksum = xxhash.xxh3_128()
    size = 0
    block = memoryview(bytearray(BLOCK))
    with path.open("rb") as file:
        while count := file.readinto(block):
            checksum.update(block[:count])
            size += count
    return {"bytes": size, "xxh3_128": checksum.hexdigest()}


def _own_checksum(manifest: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())


def _one_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return (text or type(error).__name__).split("\n")[0][:150]
