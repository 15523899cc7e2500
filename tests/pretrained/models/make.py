"""Makes the files beside it with transformers and PyTorch, which the tests then need no more.

Run it in an environment that has both: `python tests/pretrained/models/make.py`. Of each family there is a small random
model as transformers save it, and in expected.npz what it computes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    MBartConfig,
    MBartForConditionalGeneration,
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

HERE = Path(__file__).parent
BART = {
    "vocab_size": 41, "d_model": 12, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 10, "decoder_ffn_dim": 10, "max_position_embeddings": 20,
    "dropout": 0.2, "init_std": 0.4, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
T5 = {
    "vocab_size": 41, "d_model": 12, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2, "d_kv": 5, "d_ff": 10,
    "relative_attention_num_buckets": 6, "relative_attention_max_distance": 8, "dropout_rate": 0.2,
    "layer_norm_epsilon": 0.01, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0,
}  # fmt: skip
MODELS = {
    "bart": (BartForConditionalGeneration, BartConfig(**BART, scale_embedding=False)),
    "mbart": (MBartForConditionalGeneration, MBartConfig(**BART, scale_embedding=True, activation_function="relu")),
    "mt5": (MT5ForConditionalGeneration, MT5Config(**T5)),
    "t5": (T5ForConditionalGeneration, T5Config(**T5)),
    "t5-gated": (
        T5ForConditionalGeneration,
        T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    ),
}
# Ids that no model uses as special ones.
QUESTIONS = [[5, 9, 33, 7, 12, 40, 8, 6, 21, 30, 11, 4], [17, 3, 28]]
REPLIES = [[20, 4, 4], [35, 6, 19, 10, 22, 13, 39, 5, 16, 29]]
STEPS, BEAMS = 12, (1, 3)


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    """Rows of equal lengths."""
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def randomised(name: str, seed: int) -> torch.nn.Module:
    """A model of a family with random weights, also gains, shifts and biases."""
    kind, config = MODELS[name]
    torch.manual_seed(seed)
    model = kind(config).eval()
    if name == "t5-gated":  # published ones have an output matrix of their own
        model.lm_head.weight = torch.nn.Parameter(torch.randn(config.vocab_size, config.d_model) * 0.3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        model.get_input_embeddings().weight.mul_(0.3)  # else each token is followed by itself
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_(std=0.3)
    return model


def replies(model: torch.nn.Module, beams: int) -> list[list[int]]:
    """The replies of greedy or beam search, without what chatbot never says: up to their ends."""
    pad, eos = model.config.pad_token_id, model.config.eos_token_id
    unknown = min({*range(4)} - {pad, eos})  # as tests/pretrained/test_weights.py has it
    options: dict[str, Any] = {"num_beams": beams, "do_sample": False, "max_new_tokens": STEPS, "min_new_tokens": 2}
    if beams > 1:
        options |= {"early_stopping": False, "length_penalty": 0.0}
    mask = (padded(QUESTIONS, -1) >= 0).long()
    found = model.generate(padded(QUESTIONS, pad), attention_mask=mask, suppress_tokens=[pad, unknown], **options)
    rows = [row[1:] for row in found.tolist()]
    return [row[: row.index(eos)] if eos in row else row for row in rows]


def save(name: str, model: torch.nn.Module) -> None:
    """Write a model, and what it computes."""
    pad, eos, start = (getattr(model.config, f"{x}_token_id") for x in ("pad", "eos", "decoder_start"))
    source, target = padded(QUESTIONS, pad), padded([[start, *row] for row in REPLIES], pad)
    labels, mask = padded([[*row, eos] for row in REPLIES], -100), (padded(QUESTIONS, -1) >= 0).long()
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=-100)
    loss.backward()
    expected = {"logits": logits.detach().numpy(), "loss": loss.detach().numpy()}
    for key, parameter in model.named_parameters():
        if parameter.grad is not None:
            expected[f"gradient {key}"] = parameter.grad.numpy()
    for beams in BEAMS:
        expected[f"replies {beams}"] = padded(replies(model, beams), eos).numpy()
    model.save_pretrained(HERE / name)
    (HERE / name / "generation_config.json").unlink()
    np.savez_compressed(HERE / name / "expected.npz", **expected)
    print(name, float(loss.detach()), *(expected[f"replies {beams}"].tolist() for beams in BEAMS))


for name in MODELS:
    for seed in range(1000):
        found = [replies(randomised(name, seed), beams) for beams in BEAMS]
        lengths = [len(row) for rows in found for row in rows]
        if max(lengths) < STEPS - 1 and len({*lengths}) > 1 and found[0] != found[1]:
            save(name, randomised(name, seed))
            break
    else:
        raise SystemExit(f"{name}: no seed whose replies end")
