"""Reads and writes the files of a checkpoint without importing TensorFlow.

    ckpt-<step>.safetensors   the tensors, named by group and number, such as weights/0
    ckpt-<step>.json          the manifest: size and checksum of the tensors file, progress, and provenance

The manifest is written last, so a checkpoint with a manifest is complete. The files `last` and `best` contain the name
of the last and the best checkpoint. Functions in this module identify a checkpoint by its path without a suffix.
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
AT_END = "nats_at_end"  # key in `last`: the final validation loss of a run that --time-limit ended
BLOCK = 1 << 20  # bytes per read
# Maps NumPy's dtype names to those of safetensors.
TYPES = {"float32": "F32", "float64": "F64", "int32": "I32", "int64": "I64"}

Array = npt.NDArray[Any]
Content = TypeVar("Content")


class DamagedError(UserError):
    """Raised if a checkpoint is missing or damaged. Other checkpoints of the attempt may still be intact."""

    def __init__(self, path: Path, what: str, reason: str) -> None:
        self.found = f"{path}: checkpoint {what} ({reason})"
        super().__init__(f"{self.found}; {REMEDY}")


def checkpoint_path(directory: Path, step: int) -> Path:
    """Return the path of the checkpoint for a step, without the suffix of its files."""
    return directory / f"ckpt-{step}"


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint."""
    return int(path.name.removeprefix("ckpt-"))


def tensors_path(path: Path) -> Path:
    """Return the path of a checkpoint's .safetensors file."""
    return path.with_name(f"{path.name}.safetensors")


def manifest_path(path: Path) -> Path:
    """Return the path of a checkpoint's manifest."""
    return path.with_name(f"{path.name}.json")


def saved_steps(directory: Path) -> list[int]:
    """Return the steps of all complete checkpoints in a folder, newest first."""
    names = [path.stem for path in directory.glob("ckpt-*.json") if re.fullmatch(r"ckpt-[0-9]{1,18}", path.stem)]
    return sorted((step_of(Path(name)) for name in names), reverse=True)


def read_pointer(path: Path) -> dict[str, Any]:
    """Read the pointer file `last` or `best`, a JSON object with the keys "checkpoint" and "step".

    Raises UserError if the file is missing or damaged.
    """
    try:
        pointer = read_json(path)
        name = pointer["checkpoint"]
        step = pointer["step"]
        if type(step) is not int or name != f"ckpt-{step}" or step < 0:
            raise ValueError("invalid checkpoint name")
    except FileNotFoundError:
        if saved_steps(path.parent):
            raise UserError(f"{path}: missing, though there are checkpoints beside it; {REMEDY}") from None
        raise UserError(f"{path}: missing, no checkpoint was saved yet; train first") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged, it does not name a checkpoint; {REMEDY}") from None
    return pointer


def pointer_steps(directory: Path) -> dict[str, int]:
    """Return the steps that `last` and `best` point to, if these files exist. Raises UserError for a damaged file."""
    return {name: read_pointer(directory / name)["step"] for name in (LAST, BEST) if (directory / name).exists()}


def better_last_nats(directory: Path) -> float | None:
    """Return the validation loss of the last checkpoint if it is lower than that of the best checkpoint, else None.

    The last checkpoint can only be better if --time-limit ended the run. The final validation of such a run does not
    update `best`, so that several time-limited runs choose the same best checkpoint as one long run.

    Returns:
        The loss in nats per character.
    """
    try:
        pointer = read_pointer(directory / LAST)
    except UserError:
        return None
    nats = pointer.get(AT_END)
    best = pointer.get("best_nats")
    return nats if isinstance(nats, float) and isinstance(best, float) and nats < best else None


def first_intact(
    directory: Path, steps: Iterable[int], read: Callable[[Path], Content]
) -> tuple[int, Content, DamagedError | None]:
    """Find the first checkpoint that can be read.

    Args:
        directory: The folder of the attempt.
        steps: The steps to try, in order.
        read: A function that reads the checkpoint at a path.

    Returns:
        The step, the result of `read`, and the first DamagedError; None if no checkpoint was damaged.

    Raises:
        DamagedError: If no checkpoint can be read.
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
    """Return the steps of the checkpoints to try when resuming: the last one, then earlier ones, newest first."""
    steps = pointer_steps(directory)
    last = read_pointer(directory / LAST)["step"]
    return [last, *sorted({step for step in (*saved_steps(directory), *steps.values()) if step < last}, reverse=True)]


def write_checkpoint(path: Path, tensors: Mapping[str, Sequence[Array]], content: Mapping[str, Any]) -> None:
    """Write the files of a checkpoint, and wait until they are on disk. Raises OSError.

    Args:
        path: The path of the checkpoint.
        tensors: Lists of arrays by group, with the dtypes in TYPES.
        content: The entries of the manifest, except for the checksums, as JSON values.
    """
    manifest_path(path).unlink(missing_ok=True)  # remove the manifest of a damaged checkpoint of the same step
    file = tensors_path(path)
    with replacing(file) as part:
        _write_tensors(part, {f"{group}/{i}": value for group in tensors for i, value in enumerate(tensors[group])})
    _write_manifest(path, {"files": {file.name: _checksum(file)}, **content})


def amend_manifest(path: Path, content: Mapping[str, Any]) -> None:
    """Update entries of a checkpoint's manifest with JSON values. Raises OSError and DamagedError."""
    _write_manifest(path, {**verified_manifest(path), **content})


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    write_json(manifest_path(path), {**manifest, "checksum": _manifest_checksum(manifest)})


def _write_tensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Write a file in the safetensors format.

    The safetensors library is not used for writing, because it makes files readable only by their owner. Also, its
    errors lack the error number of the operating system.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)  # this order aligns all tensors
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
    """Return a checkpoint's manifest after verifying all checksums. Raises DamagedError."""
    file = tensors_path(path)
    manifest_file = manifest_path(path)
    try:
        manifest = read_json(manifest_file)
        if manifest.pop("checksum") != _manifest_checksum(manifest):
            raise ValueError("its checksum is wrong")
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
            raise DamagedError(path, "damaged", f"{file.name} does not have the checksum in {manifest_file.name}")
    except FileNotFoundError:
        raise DamagedError(path, "missing", f"no file {file.name}") from None
    except OSError as error:
        raise DamagedError(path, "damaged", f"{file.name}: {_one_line(error)}") from None
    return manifest


def group_sizes(path: Path) -> Counter[str]:
    """Return the number of values in each tensor group, read from the file header. Raises DamagedError."""
    sizes: Counter[str] = Counter()
    with _open_tensors(path) as file:
        for name in file.keys():  # noqa: SIM118  # safe_open does not return a mapping
            sizes[name.partition("/")[0]] += prod(file.get_slice(name).get_shape())
    return sizes


def read_group(path: Path, group: str, shapes: Sequence[Sequence[int]]) -> list[Array]:
    """Read the tensors of a group, such as "weights", in the order of their numbers.

    All shapes are checked before any tensor is read. Raises DamagedError if the file is damaged or if a shape differs
    from `shapes`.
    """
    with _open_tensors(path) as file:
        names = [name for name in file.keys() if name.startswith(f"{group}/")]  # noqa: SIM118
        if len(names) != len(shapes):
            raise ValueError(f"it contains {len(names)} {group}, not {len(shapes)}")
        names = [f"{group}/{number}" for number in range(len(names))]
        tensors = [file.get_slice(name) for name in names]
        for tensor, shape in zip(tensors, shapes, strict=True):
            if tuple(tensor.get_shape()) != tuple(shape):
                raise ValueError(f"one of its {group} has shape {tuple(tensor.get_shape())}, not {tuple(shape)}")
            if tensor.get_dtype() not in TYPES.values():
                raise ValueError(f"one of its {group} has dtype {tensor.get_dtype()}")
        return [file.get_tensor(name) for name in names]


@contextmanager
def _open_tensors(path: Path) -> Iterator[Any]:
    """Open the tensors file of a checkpoint. Errors in the `with` block are converted to DamagedError."""
    try:
        with safe_open(tensors_path(path), "numpy") as file:
            yield file
    except FileNotFoundError:
        raise DamagedError(path, "missing", "no such file") from None
    except (SafetensorError, OSError) as error:
        reason = _one_line(error).removeprefix("Error while deserializing header: ")
        raise DamagedError(path, "damaged", reason) from None
    except ValueError as error:
        raise DamagedError(path, "damaged, or does not match the settings", _one_line(error)) from None


def check_model_size(directory: Path, settings: ModelSettings, tokens: int = len(SPECIALS)) -> None:
    """Raise UserError if every checkpoint in a folder is too small for a model with these settings.

    This check runs before the model is built, so it compares the checkpoints with a lower bound of the model's size.

    Args:
        directory: The folder of the attempt.
        settings: The settings of the model.
        tokens: The size of the vocabulary, or a lower bound.
    """
    size = settings.embedding_size
    layer_size = 2 * settings.rnn_size**2
    if settings.form is not None:
        layer_size = 0
    elif settings.architecture == TRANSFORMER:
        layer_size = 12 * size**2 + 4 * size * settings.feed_forward_size
    layers = settings.num_layers * layer_size
    embeddings = tokens * settings.embedding_size * (1 if settings.tied_embeddings else 2)
    min_size = 4 * (layers + embeddings)
    largest = largest_checkpoint(directory)
    if largest and min_size > largest:
        raise UserError(
            f"{directory}: checkpoint damaged, or does not match the settings (a model of at least "
            f"{min_size / 1e6:,.1f} MB, but {largest / 1e6:,.1f} MB of data); {REMEDY}"
        )


def largest_checkpoint(directory: Path) -> int:
    """Return the size of the largest checkpoint in a folder in bytes; 0 if there is none."""
    return max((path.stat().st_size for path in directory.glob("ckpt-*.safetensors")), default=0)


def check_vocabulary(manifest: dict[str, Any], fingerprint: str, path: Path) -> None:
    """Raise UserError if a checkpoint was trained with a vocabulary that has a different fingerprint."""
    data = manifest.get("data")
    if isinstance(data, dict) and data.get("vocabulary", fingerprint) != fingerprint:
        raise UserError(
            f"{path.with_name(VOCABULARY)}: not the vocabulary that {path.name} was trained with; restore it from a "
            "backup, or use another --attempt"
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


def _manifest_checksum(manifest: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True).encode())


def _one_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else str(error)
    return (text or type(error).__name__).split("\n")[0][:150]
