"""A published model: a folder as transformers save it, with config.json, tokenizer.json and its tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chatbot.config.corpus import PIECES
from chatbot.config.families import family_of, settings_of
from chatbot.durable import read_json
from chatbot.errors import UserError

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TYPES = {"float16", "float32", "float64"}
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


def published_settings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that begins with a published model, by name. Raises UserError, as `settings_of`."""
    if not (folder / TOKENIZER).is_file():
        remedy = "save its tokenizer with transformers (AutoTokenizer, save_pretrained)"
        raise UserError(f"{folder}: no {TOKENIZER}; {remedy}")
    values = settings_of(config, str(folder / CONFIG))
    return {
        **values,
        "tied_embeddings": not has_projection(folder),
        "tokenizer": PIECES,
        "dictionary": str(folder / TOKENIZER),
        "both_directions": "off",
        "learning_rate": LEARNING_RATE,
    }


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
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(files[name], "numpy") as file:
            tensor = file.get_tensor(name)
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise UserError(f"{files[name]}: {name} cannot be read ({str(error)[:80]}); {REMEDY}") from None
    if str(tensor.dtype) not in TYPES:
        raise UserError(f"{files[name]}: {name} is of type {tensor.dtype}; {REMEDY}")
    return tensor.astype("float32")
