"""Removes tokens that a corpus does not contain from a pretrained model, which makes the model smaller.

Tokens that are needed to spell other texts are kept.
"""

import dataclasses
import json
import os
from collections.abc import Collection
from pathlib import Path

import numpy as np

from chatbot.config.corpus import PIECES, PruneSettings
from chatbot.corpus.cache import temporary_folder
from chatbot.corpus.dataset import count_tokens, print_reports, select_pairs
from chatbot.corpus.files import tokenise, training_files, validation_files, without_word_spaces
from chatbot.corpus.pieces import REMEDY, TOKENIZER, open_tokenizer
from chatbot.corpus.selection import Selection
from chatbot.corpus.workers import worker_pool
from chatbot.display import pluralize
from chatbot.durable import write_json
from chatbot.errors import UserError
from chatbot.pretrained.families import EMBEDDING_COPIES, IGNORED
from chatbot.pretrained.folder import CONFIG, PretrainedModel, pretrained_model, write_tensors
from chatbot.pretrained.tokens import piece_vocabulary, write_tokenizer_config

# Keys with these prefixes are removed from config.json, because they contain the old dtype or old token ids.
REMOVED_KEYS = ("torch_dtype", "force", "bad_words", "suppress", "begin_suppress", "sequence_bias", "task_")


def prune(settings: PruneSettings) -> None:
    """Write a copy of a pretrained model with only the tokens that the training pairs need to a new folder.

    Raises:
        UserError: The settings, the files or the model cannot be used. Nothing is written in this case.
    """
    model = pretrained_model(settings.init_from)
    output = Path(settings.output)
    if model is None:
        remedy = "give a folder or a Hugging Face model id, such as google/mt5-small"
        raise UserError(f"--init-from {settings.init_from}: not a pretrained model; {remedy}")
    if os.path.lexists(output) or not output.parent.is_dir():
        raise UserError(f"--output {output}: must be a new folder in an existing one; give another path")
    corpus = dataclasses.replace(settings.corpus, tokenizer=PIECES, dictionary=str(model.tokenizer()))
    corpus = without_word_spaces(corpus)
    tokens = set[str]()
    with worker_pool() as pool:
        for files in filter(None, (training_files(corpus), validation_files(corpus))):
            tokenised = tokenise(files, pool)
            selected = select_pairs(tokenised, tokenised.hashes(), Selection.from_settings(files.settings))
            tokens |= count_tokens(tokenised, selected, pool).keys()
            print_reports(tokenised.reports)
    with temporary_folder(output.parent, ".pruned-") as part:
        token_count, weight_count = write_pruned(model, tokens, part)
        part.chmod(0o755)
        part.rename(output)
    size = model.config["vocab_size"]
    print(f"{output}: {pluralize(token_count, 'token')} of {size:,}; {pluralize(weight_count, 'weight')}")


def write_pruned(model: PretrainedModel, pieces: Collection[str], folder: Path) -> tuple[int, int]:
    """Write a pretrained model with fewer tokens to a folder.

    Args:
        model: The model.
        pieces: The tokens to keep. Special tokens, and the tokens needed to spell other texts, are also kept.
        folder: The folder to write to.

    Returns:
        The number of tokens and the number of weights.

    Raises:
        UserError: The model cannot be read, or its tokenizer cannot be pruned.
        OSError: A file cannot be written.
    """
    path = model.tokenizer()
    vocabulary, _ = piece_vocabulary(path, model.config)
    tokenizer = open_tokenizer(path)
    ids = tokenizer.get_vocab()
    content = json.loads(tokenizer.to_str())
    unigram = content["model"]
    template = content["post_processor"]
    if (unigram["type"], template["type"]) != ("Unigram", "TemplateProcessing"):
        raise UserError(
            f"{path}: {unigram['type']} cannot be pruned, only a Unigram such as T5's; train with all tokens"
        )
    config = {name: x for name, x in model.config.items() if not name.startswith(REMOVED_KEYS)}
    special = {name: x for name, x in config.items() if name.endswith("_token_id") and x in range(config["vocab_size"])}
    keep = {*special.values(), unigram["unk_id"], *(token["id"] for token in content["added_tokens"])} - {None}
    keep |= {i for token in template["special_tokens"].values() for i in token["ids"]}
    # Also keep single characters, bytes such as <0x41>, and pieces that cannot be spelled with single characters.
    keep |= {i for x, i in ids.items() if x in pieces or len(x) < 2 or not {*x} <= ids.keys() or x.startswith("<0x")}
    rows = np.array(sorted(keep))
    new = {int(row): i for i, row in enumerate(rows)}
    unigram["vocab"] = [scored for i, scored in enumerate(unigram["vocab"]) if i in keep]
    unigram["unk_id"] = new.get(unigram["unk_id"])
    for token in content["added_tokens"]:
        token["id"] = new[token["id"]]
    for token in template["special_tokens"].values():
        token["ids"] = [new[i] for i in token["ids"]]
    (folder / TOKENIZER).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    write_tokenizer_config(folder, vocabulary)
    new_ids = {name: new[x] for name, x in special.items()}
    write_json(folder / CONFIG, {**config, **new_ids, "vocab_size": len(rows), "dtype": "float32"})
    names = model.family.names
    tensors = {}
    for name in dict.fromkeys([names.embedding, *model.tensors]):
        if name.endswith(IGNORED):
            continue
        tensors[name] = model.tensor(name)
        if name in (names.embedding, names.output_bias) or name.endswith(EMBEDDING_COPIES):
            axis = -1 if name == names.output_bias else 0
            if tensors[name].ndim != 2 or tensors[name].shape[axis] <= rows[-1]:
                shape = [*tensors[name].shape]
                raise UserError(f"{model.folder}: {name} is {shape}, which does not fit the tokenizer; {REMEDY}")
            tensors[name] = np.take(tensors[name], rows, axis)
    write_tensors(folder, tensors)
    return len(rows), sum(value.size for value in tensors.values())
