"""The vocabulary of a pretrained model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from chatbot.corpus.pieces import REMEDY, TEXTS, open_tokenizer
from chatbot.corpus.vocabulary import SPECIALS, UNK, PieceVocabulary
from chatbot.durable import write_json
from chatbot.errors import UserError


def piece_vocabulary(path: Path, config: Mapping[str, Any]) -> tuple[PieceVocabulary, npt.NDArray[np.int64]]:
    """Read the vocabulary of a pretrained model.

    Args:
        path: The path of the model's tokenizer.json.
        config: The content of the model's config.json, which defines the tokens that begin, end and pad replies.

    Returns:
        The vocabulary, and the id of each token in the pretrained model, [tokens]. Tokens that the pretrained model
        does not have get the id -1.

    Raises:
        UserError: The files contradict each other, or the tokenizer is not supported.
    """
    tokenizer = open_tokenizer(path)
    size = _number(config, "vocab_size", path)
    content = json.loads(tokenizer.to_str())
    kind = (content.get("decoder") or {}).get("type")
    if kind not in TEXTS:
        raise UserError(f"{path}: decoder {kind!r} is not supported; choose one of {', '.join(TEXTS)}")
    ids = tokenizer.get_vocab()
    if ids and max(ids.values()) >= size:
        raise UserError(f"{path}: {max(ids.values()) + 1:,} tokens, but vocab_size {size:,} in config.json; {REMEDY}")
    names = {i: piece for piece, i in ids.items()}
    unused = [i for i in range(size) if i not in names]
    names |= {i: f"<unused {i}>" for i in unused}
    pad, end, start = (_number(config, f"{x}_token_id", path) for x in ("pad", "eos", "decoder_start"))
    if not {pad, end, start} <= names.keys():
        raise UserError(f"{path}: the ids {pad}, {end} and {start} in config.json are not all ids of tokens; {REMEDY}")
    model = content["model"]
    unknown = model["unk_id"] if type(model.get("unk_id")) is int else ids.get(model.get("unk_token"), -1)
    *beginning, last = tokenizer.encode("").tokens or [""]
    if last != names[end]:
        raise UserError(f"{path}: texts do not end with {names[end]!r}, the EOS of config.json; choose another model")
    special = [names[pad], names[end], names.get(unknown, SPECIALS[UNK])]
    others = [i for i in range(size) if i not in (pad, end, unknown)]
    pieces = [names[i] for i in others]
    if any("\n" in piece for piece in pieces):
        raise UserError(f"{path}: a token with a line break is not supported; choose another model")
    added = tokenizer.get_added_tokens_decoder().items()
    silent = {*(names[i] for i, token in added if token.special), *(names[i] for i in unused), *beginning} & {*pieces}
    literal = {names[i] for i, _ in added} & {*pieces} - silent
    description = {
        "texts": kind,
        "special": special,
        "silent": sorted(silent),
        "literal": sorted(literal),
        "beginning": beginning,
        "config": dict(config),
    }
    rows = [pad, start, end, unknown, -1, *others]
    try:
        return PieceVocabulary(pieces, description), np.array(rows)
    except (LookupError, ValueError):
        raise UserError(f"{path}: a token cannot be read by decoder {kind!r}; {REMEDY}") from None


def write_tokenizer_config(folder: Path, vocabulary: PieceVocabulary) -> None:
    """Write tokenizer_config.json, so transformers does not use the default tokenizer of the model_type."""
    pad, end, _ = vocabulary.description["special"]
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(folder / "tokenizer_config.json", {**kind, "pad_token": pad, "eos_token": end})


def _number(config: Mapping[str, Any], name: str, path: Path) -> int:
    value = config.get(name)
    if type(value) is not int or not 0 <= value <= 10_000_000:
        problem = f"{name} {value!r} in config.json is not a whole number up to 10,000,000"
        raise UserError(f"{path.parent}: {problem}; {REMEDY}")
    return value
