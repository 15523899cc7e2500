"""A pretrained model with fewer tokens: those of a corpus, and those that spell all other texts.

Of the 300 million weights of mT5-small, 256 million are of its 250,000 tokens, for 101 languages (Xue et al., 2021).
"""

import dataclasses
import json
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from chatbot.config.corpus import PIECES, PruneSettings
from chatbot.corpus.pieces import REMEDY, TOKENIZER, open_tokenizer
from chatbot.display import counted
from chatbot.durable import write_json
from chatbot.errors import UserError
from chatbot.pretrained.families import COPIES, UNREAD
from chatbot.pretrained.folder import CONFIG, PretrainedModel, pretrained_model, write_tensors
from chatbot.pretrained.tokens import piece_vocabulary, write_tokenizer_config

BYTE = re.compile("<0x[0-9A-F]{2}>")
BPE = "BPE"
WORD_PIECE = "WordPiece"
UNIGRAM = "Unigram"
# Of config.json: the type of the tensors, and ids for generation that are no plain `*_token_id`.
LEFT_OUT = (
    "torch_dtype",
    "forced_",
    "bad_words",
    "force_words",
    "suppress",
    "begin_suppress",
    "sequence_bias",
    "task_",
)


def prune(settings: PruneSettings) -> None:
    """Write a pretrained model with the tokens of the pairs to a new folder. Raises UserError, with nothing written."""
    from chatbot.corpus.cache import temporary_folder
    from chatbot.corpus.dataset import count_tokens, described, kept_pairs
    from chatbot.corpus.files import tokenise, training_files, validation_files, without_word_spaces
    from chatbot.corpus.selection import Selection
    from chatbot.corpus.workers import worker_pool

    model = pretrained_model(settings.init_from)
    output = Path(settings.output)
    if model is None:
        remedy = "give its folder, its name such as google/mt5-small, or an attempt's export"
        raise UserError(f"--init-from {settings.init_from}: no pretrained model; {remedy}")
    if os.path.lexists(output) or not output.parent.is_dir():
        raise UserError(f"--output {output}: give a folder that does not exist yet, in one that does")
    of_pieces = dataclasses.replace(settings.corpus, tokenizer=PIECES, dictionary=str(model.tokenizer()))
    corpus_settings = without_word_spaces(of_pieces)
    used = set[str]()
    with worker_pool() as pool:
        for files in filter(None, (training_files(corpus_settings), validation_files(corpus_settings))):
            tokenised = tokenise(files, pool)
            kept = kept_pairs(tokenised, tokenised.hashes(), Selection.of(files.settings))
            used |= count_tokens(tokenised, kept, pool).keys()
            for report in tokenised.reports:
                print(f"{report.file}: {counted(report.pairs, 'pair')}", *described(report), sep="\n")
    with temporary_folder(output.parent, ".pruned-") as part:
        tokens, weights = write_pruned(model, used, part)
        part.chmod(0o755)
        part.rename(output)
    print(f"{output}: {counted(tokens, 'token')} of {model.config['vocab_size']:,}; {counted(weights, 'weight')}")


def write_pruned(model: PretrainedModel, used: Collection[str], folder: Path) -> tuple[int, int]:
    """Write a pretrained model with fewer tokens into a folder. Return the numbers of its tokens and of its weights.

    used: pieces that stay, beside the special ones and those that spell others. A text of used pieces has the same ones
    afterwards. Raises UserError for a model that cannot be read, or a tokenizer that cannot be pruned, OSError.
    """
    path = model.tokenizer()
    names = model.family.names
    vocabulary, _ = piece_vocabulary(path, model.config)
    made = open_tokenizer(path)
    size = model.config["vocab_size"]
    content = json.loads(made.to_str())
    ids = made.get_vocab()
    if content["model"]["type"] not in (BPE, WORD_PIECE, UNIGRAM):
        kind = content["model"]["type"]
        raise UserError(f"{path}: tokens of a model {kind} cannot be pruned; train with all of them")
    config = {name: x for name, x in model.config.items() if not name.startswith(LEFT_OUT)}
    of_config = {name: x for name, x in config.items() if name.endswith("_token_id") and x in range(size)}
    special = {*of_config.values(), *_ids_in(content["post_processor"])}
    pieces = _kept(ids, used, content, special)
    rows = np.array(sorted({*(ids[piece] for piece in pieces), *special}))
    new = {int(row): i for i, row in enumerate(rows)}
    (folder / TOKENIZER).write_text(json.dumps(_pruned(content, pieces, new), ensure_ascii=False), encoding="utf-8")
    if open_tokenizer(folder / TOKENIZER).get_vocab() != {piece: new[ids[piece]] for piece in pieces}:
        raise UserError(f"{path}: its tokens cannot be numbered without gaps; train with all of them")
    write_tokenizer_config(folder, vocabulary)
    config |= {name: new[x] for name, x in of_config.items()} | {"vocab_size": len(rows), "dtype": "float32"}
    write_json(folder / CONFIG, config)
    tensors = {}
    for name in dict.fromkeys([names.embedding, *model.tensors]):
        if name.endswith(UNREAD):
            continue
        value = model.tensor(name)
        axis = -1 if name == names.output_bias else 0
        if name in (names.embedding, names.output_bias) or name.endswith(COPIES):
            if value.ndim != 2 or value.shape[axis] <= rows[-1]:
                raise UserError(f"{model.folder}: {name} is {[*value.shape]}, not of the tokens; {REMEDY}")
            value = np.take(value, rows, axis)
        tensors[name] = value
    write_tensors(folder, tensors)
    return len(rows), sum(value.size for value in tensors.values())


def _kept(ids: Mapping[str, int], used: Collection[str], content: Mapping[str, Any], special: Set[int]) -> set[str]:
    """Return the pieces that stay. content: of tokenizer.json. special: ids that stay, some without a piece."""
    model = content["model"]
    kept = {token["content"] for token in content["added_tokens"]} | {piece for piece, i in ids.items() if i in special}
    unknown = model["vocab"][model["unk_id"]][0] if model.get("unk_id") is not None else model.get("unk_token")
    kept |= {*used, unknown} & ids.keys()
    for piece in ids:
        characters = _characters(piece, model)
        if len(characters) < 2 or not {*characters} <= ids.keys() or BYTE.fullmatch(piece):
            kept.add(piece)
    parts = defaultdict[str, set[str]](set)  # of what BPE joins
    for first, second in model.get("merges", ()):
        parts[_joined(first, second, model)] |= {first, second}
    unseen = [*kept]
    while unseen:
        found = parts[unseen.pop()] - kept
        kept |= found
        unseen += found
    return kept


def _characters(piece: str, model: Mapping[str, Any]) -> list[str]:
    """Return what spells a piece: its characters, with what marks their places in a word. model: of tokenizer.json."""
    within, last = (model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    found = [within + x for x in piece.removeprefix(within).removesuffix(last)]
    if found and not piece.startswith(within):
        found[0] = found[0].removeprefix(within)
    if found and piece.endswith(last):
        found[-1] += last
    return found


def _joined(first: str, second: str, model: Mapping[str, Any]) -> str:
    return first + second.removeprefix(model.get("continuing_subword_prefix") or "")


def _pruned(content: Mapping[str, Any], pieces: Set[str], new: Mapping[int, int]) -> dict[str, Any]:
    """Return the content of tokenizer.json with these pieces only. new: the new id of each old one."""
    model = dict(content["model"])
    if model["type"] == UNIGRAM:
        model["vocab"] = [scored for scored in model["vocab"] if scored[0] in pieces]
        model["unk_id"] = new.get(model["unk_id"])
    else:
        model["vocab"] = {piece: new[i] for piece, i in model["vocab"].items() if piece in pieces}
    if model["type"] == BPE:
        model["merges"] = [m for m in model["merges"] if {*m, _joined(m[0], m[1], model)} <= pieces]
    added = [token | {"id": new[token["id"]]} for token in content["added_tokens"]]
    after = _renumbered(content["post_processor"], new)
    return {**content, "model": model, "added_tokens": added, "post_processor": after}


def _ids_in(value: Any) -> Iterator[int]:
    """Yield the ids in what follows a tokenizer: numbers in lists, alone or beside the name of a token."""
    for x in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(value, list) and type(x) is int:
            yield x
        else:
            yield from _ids_in(x)


def _renumbered(value: Any, new: Mapping[int, int]) -> Any:
    """Return it with new ids."""
    if isinstance(value, dict):
        return {name: _renumbered(x, new) for name, x in value.items()}
    if isinstance(value, list):
        return [new[x] if type(x) is int else _renumbered(x, new) for x in value]
    return value
