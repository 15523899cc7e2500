"""A published model: a folder as transformers save it, with config.json, tokenizer.json and its tensors."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chatbot.config.corpus import PIECES
from chatbot.config.families import family_of, settings_of
from chatbot.durable import read_json
from chatbot.errors import UserError

CONFIG, TOKENIZER, VOCAB = "config.json", "tokenizer.json", "vocab.txt"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TYPES = {"bfloat16", "float16", "float32", "float64"}
# Of fine-tuning, as in the examples of transformers.
LEARNING_RATE = 5e-5
REMEDY = "copy the folder again from where the model was published"


def published(folder: Path) -> dict[str, Any] | None:
    """Return what config.json of a published model says; None for a folder without one, such as an attempt."""
    try:
        config = read_json(folder / CONFIG)
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) and "model_type" in config else None


def local_folder(name: str) -> Path:
    """Return the folder of a published model: that of the name, or the one that huggingface_hub has or fetches.

    name: of a folder, an attempt, or of a model there, such as fnlp/bart-base-chinese. Raises UserError for one that
    cannot be fetched.
    """
    if Path(name).exists() or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return Path(name)
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise UserError(
            f"--init-from {name}: no such folder; to fetch a model of this name, run `pip install huggingface_hub`"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "vocab.txt", "*.safetensors"]))
    except (OSError, ValueError) as error:  # of the network, or of a name that is not there
        reason = str(error).partition("\n")[0][:70]
        raise UserError(f"--init-from {name}: no such folder, and it cannot be fetched ({reason})") from None


def published_settings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that begins with a published model, by name. Raises UserError, as `settings_of`."""
    return {
        **settings_of(config, str(folder / CONFIG)),
        "tied_embeddings": not has_projection(folder),
        "tokenizer": PIECES,
        "dictionary": str(tokenizer_of(folder)),
        "both_directions": "off",
        "learning_rate": LEARNING_RATE,
    }


def tokenizer_of(folder: Path) -> Path:
    """Return the file of the tokenizer of a published model. Raises UserError for a folder without one."""
    for name in (TOKENIZER, VOCAB):
        if (folder / name).is_file():
            return folder / name
    remedy = "save its tokenizer with transformers (AutoTokenizer, save_pretrained)"
    raise UserError(f"{folder}: neither {TOKENIZER} nor {VOCAB}; {remedy}")


def has_projection(folder: Path) -> bool:
    """Return whether the model in a folder has an output matrix that is not its embedding. Raises UserError."""
    files, names = tensor_files(folder), family_of(published(folder) or {}, str(folder / CONFIG)).names
    if names.projection not in files:
        return False
    return bool((read_tensor(files, names.projection) != read_tensor(files, names.embedding)).any())


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor in a folder. Raises UserError for files that are missing or damaged."""
    if (folder / INDEX).is_file():
        try:
            names = dict(read_json(folder / INDEX)["weight_map"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(f"{folder / INDEX}: cannot be read ({error}); {REMEDY}") from None
        for name, file in names.items():
            if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
                raise UserError(f"{folder / INDEX}: {name} is in {file!r}, outside the folder; {REMEDY}")
        return {name: folder / file for name, file in names.items()}
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = (folder / "pytorch_model.bin").is_file()
        remedy = "convert pytorch_model.bin with transformers (save_pretrained)" if pickled else REMEDY
        raise UserError(f"{folder}: no {WEIGHTS}; {remedy}")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            return dict.fromkeys(file.keys(), path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path}: cannot be read ({str(error)[:80]}); {REMEDY}") from None


def read_tensor(files: Mapping[str, Path], name: str) -> Any:
    """Return a tensor as an array of float32. files: from `tensor_files`. Raises UserError."""
    if name not in files:
        folder = next(iter(files.values())).parent
        raise UserError(f"{folder}: no tensor {name}; {REMEDY}")
    import ml_dtypes  # noqa: F401  # of TensorFlow: NumPy knows bfloat16 then
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(files[name], "numpy") as file:
            tensor = file.get_tensor(name)
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise UserError(f"{files[name]}: {name} cannot be read ({str(error)[:80]}); {REMEDY}") from None
    if str(tensor.dtype) not in TYPES:
        raise UserError(f"{files[name]}: {name} is of type {tensor.dtype}; {REMEDY}")
    return tensor.astype("float32")
