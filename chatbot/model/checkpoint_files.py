"""The files of a checkpoint, without TensorFlow: the pointers `last` and `best`, and the manifest.

    ckpt-<step>.index, ckpt-<step>.data-00000-of-00001   the tensors
    ckpt-<step>.json                                     the manifest: their sizes and checksums, and the progress

Checkpoints of earlier versions have no manifest.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import xxhash

from chatbot.config.attempts import VOCABULARY
from chatbot.config.model import ModelSettings
from chatbot.corpus.vocabulary import SPECIALS
from chatbot.durable import read_json
from chatbot.errors import UserError

REMEDY = "restore it from a backup, or train again under another --attempt"
BLOCK = 1 << 20


class DamagedError(UserError):
    """A checkpoint is missing or damaged. Another one of the attempt may be whole."""

    def __init__(self, prefix: Path, what: str, reason: str) -> None:
        self.found = f"{prefix}: checkpoint {what} ({reason})"
        super().__init__(f"{self.found}; {REMEDY}")


def read_pointer(path: Path) -> dict[str, Any]:
    """Read `last` or `best`: {"checkpoint": name, "step": number, ...}.

    Raises UserError for a missing or damaged file.
    """
    try:
        pointer = read_json(path)
        name, step = pointer["checkpoint"], pointer["step"]
        if type(step) is not int or name != f"ckpt-{step}" or step < 0:
            raise ValueError("no checkpoint of that name")
    except FileNotFoundError:
        if any(path.parent.glob("ckpt-*.index")):
            raise UserError(f"{path}: missing, though there are checkpoints beside it; {REMEDY}") from None
        raise UserError(f"{path}: missing, no checkpoint was saved yet; train first") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: damaged, it does not name a checkpoint; {REMEDY}") from None
    return pointer


def manifest_path(prefix: Path) -> Path:
    """Return the path of the manifest of a checkpoint. prefix: its path without an ending."""
    return prefix.with_name(prefix.name + ".json")


def step_of(name: str) -> int:
    """Return the step in the name of a checkpoint."""
    return int(name.removeprefix("ckpt-"))


def with_manifest(directory: Path) -> list[str]:
    """Return the names of the checkpoints in a folder that have a manifest, the newest first."""
    names = [path.stem for path in directory.glob("ckpt-*.json") if re.fullmatch(r"ckpt-[0-9]{1,18}", path.stem)]
    return sorted(names, key=step_of, reverse=True)


def manifest_of(prefix: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest of a checkpoint whose files are written. content: what it holds beside. Raises OSError."""
    names = sorted(path.name for path in prefix.parent.glob(f"{prefix.name}.*") if _has_tensors(path.name, prefix))
    manifest = {"files": {name: _checksum(prefix.with_name(name)) for name in names}, **content}
    return {**manifest, "checksum": _own_checksum(manifest)}


def verified_manifest(prefix: Path) -> dict[str, Any] | None:
    """Compare the files of a checkpoint with its manifest, and return the manifest; None without one.

    A manifest that is missing gives a warning, unless it is as in attempts of earlier versions: older checkpoints have
    none either. Raises DamagedError when files and manifest differ.
    """
    path = manifest_path(prefix)
    try:
        manifest = read_json(path)
        if manifest.pop("checksum") != _own_checksum(manifest):
            raise ValueError("it does not have its own checksum")
        files = {name: dict(file) for name, file in manifest["files"].items()}
        if f"{prefix.name}.index" not in files or not all(_has_tensors(name, prefix) for name in files):
            raise ValueError("it names no files of this checkpoint")
    except FileNotFoundError:
        if any(step_of(name) < step_of(prefix.name) for name in with_manifest(prefix.parent)):
            print(f"Warning: {prefix}: not verified, {path.name} is missing.", file=sys.stderr, flush=True)
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(prefix, "damaged", f"{path.name}: {_one_line(error)}") from None
    for name, expected in files.items():
        file = prefix.with_name(name)
        try:
            size = file.stat().st_size
            if size != expected.get("bytes"):
                raise DamagedError(prefix, "damaged", f"{name} has {size:,} bytes, not {expected.get('bytes')}")
            if _checksum(file) != expected:
                raise DamagedError(prefix, "damaged", f"{name} does not have the checksum of {path.name}")
        except FileNotFoundError:
            raise DamagedError(prefix, "missing", f"no file {name}") from None
        except OSError as error:
            raise DamagedError(prefix, "damaged", f"{name}: {_one_line(error)}") from None
    return manifest


def check_model_size(directory: Path, settings: ModelSettings, tokens: int = len(SPECIALS)) -> None:
    """Raise UserError when no checkpoint in the folder is as large as a model of these settings, before it is made.

    tokens: the size of the vocabulary, or less. The bound counts the recurrent and the output matrices only.
    """
    matrices = 2 * settings.num_layers * settings.rnn_size**2
    of_tokens = tokens * settings.embedding_size * (1 if settings.tied_embeddings else 2)
    least = 4 * (matrices + of_tokens)
    data = [path.stat().st_size for path in directory.glob("ckpt-*.data-*")]
    if data and least > max(data):
        raise UserError(
            f"{directory}: checkpoint damaged, or not of these settings (a model of at least {least / 1e6:,.1f} MB, "
            f"and {max(data) / 1e6:,.1f} MB of data); {REMEDY}"
        )


def check_vocabulary(manifest: dict[str, Any], fingerprint: str, prefix: Path) -> None:
    """Raise UserError when a checkpoint was trained with another vocabulary. fingerprint: that of vocabulary.txt."""
    data = manifest.get("data")
    if isinstance(data, dict) and data.get("vocabulary", fingerprint) != fingerprint:
        raise UserError(
            f"{prefix.with_name(VOCABULARY)}: not the vocabulary that {prefix.name} was trained with, such as that of "
            "another attempt; restore it from a backup, or use another --attempt"
        )


def _has_tensors(name: str, prefix: Path) -> bool:
    return re.fullmatch(re.escape(prefix.name) + r"\.(index|data-\d{5}-of-\d{5})", name) is not None


def _checksum(path: Path) -> dict[str, Any]:
    checksum, size = xxhash.xxh3_128(), 0
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
