"""The two architectures of this project in PyTorch, tuned as one would by hand. Runs with PyTorch alone.

    python torch_model.py --text NAME --steps 60                # the speed: one JSON object
    python torch_model.py --text NAME --quality HELD_OUT        # until it is stopped: one JSON object a validation

NAME.src and NAME.tgt have an utterance a line, tokens between spaces; NAME.vocabulary has a token a line. A token
outside it is UNK, which is predicted like any other. What makes it fast: batches of pairs with similar lengths, one
fused call for a stack of LSTMs, attention for all positions at once, the projection of real tokens only, Adam in one
kernel, and matrix products in bfloat16.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

PAD, BOS, EOS, UNK = range(4)
SPECIALS = 4
# Batches whose pairs are sorted by length together.
POOL = 100
VALIDATION_BATCH = 128
LONGEST_WAVE = 10_000.0

Pair = tuple[list[int], list[int]]


class Recurrent(nn.Module):
    """Stacks of LSTMs, and Luong attention over the question. Dropout is before each layer and at the end."""

    # So that the encoder ends with the last real token. It reads the padding before a question, which this project does
    # not. Packed sequences would avoid it, but on a CPU they take 1.8 times as long in float32, as long in bfloat16.
    pads_left = True

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__()
        width = sizes.embedding_size
        units = sizes.rnn_size
        layers = sizes.num_layers
        rate = 1 - sizes.keep_prob
        between = rate if layers > 1 else 0.0
        self.encoder = nn.LSTM(width, units, layers, batch_first=True, dropout=between)
        self.decoder = nn.LSTM(width, units, layers, batch_first=True, dropout=between)
        self.score = nn.Linear(units, units, bias=False)
        self.combine = nn.Linear(2 * units, width, bias=False)
        self.dropout = nn.Dropout(rate)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor, real: Tensor) -> Tensor:
        """Return the vectors of the real target positions before the projection, [tokens, embedding].

        source, target: embeddings, [rows, time, embedding]. mask: of the question's real tokens, [rows, source] bool.
        real: the numbers of the real positions among all of the targets, [tokens] int64.
        """
        memory, state = self.encoder(self.dropout(source))
        outputs, _ = self.decoder(self.dropout(target), state)
        scores = torch.bmm(self.score(outputs), memory.transpose(1, 2))  # [rows, target, source]
        weights = torch.softmax(scores.masked_fill(~mask[:, None], float("-inf")), -1)
        both = torch.cat([outputs, torch.bmm(weights.to(memory.dtype), memory)], -1)
        return self.dropout(torch.tanh(self.combine(both.flatten(0, 1)[real])))


class Block(nn.Module):
    """The part of a Transformer's layer before its residual connection: normalisation, then what a subclass does."""

    def __init__(self, sizes: argparse.Namespace, inner: int) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.normalise = nn.LayerNorm(sizes.embedding_size, eps=1e-6)
        self.project = nn.Linear(sizes.embedding_size, inner)

    def split(self, x: Tensor) -> Tensor:
        """[rows, time, size] -> [rows, heads, time, size / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Attention(Block):
    """Multi-head attention: over the sequence itself if `inner` is 3 times the size, else by given keys and values."""

    def __init__(self, sizes: argparse.Namespace, inner: int) -> None:
        super().__init__(sizes, inner)
        self.combine = nn.Linear(sizes.embedding_size, sizes.embedding_size)

    def forward(
        self, x: Tensor, mask: Tensor | None, key_values: Sequence[Tensor] = (), is_causal: bool = False
    ) -> Tensor:
        """x [rows, time, size] -> the same shape. mask: [rows, keys] bool. key_values: two of [rows, keys, size]."""
        projected = self.project(self.normalise(x))
        factors = [projected, *key_values] if key_values else projected.chunk(3, -1)
        wide = None if mask is None else mask[:, None, None]
        means = functional.scaled_dot_product_attention(*map(self.split, factors), attn_mask=wide, is_causal=is_causal)
        return self.combine(means.transpose(1, 2).flatten(2))


class FeedForward(Block):
    """Two products with a SiLU between them."""

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__(sizes, sizes.feed_forward_size)
        self.narrow = nn.Linear(sizes.feed_forward_size, sizes.embedding_size)

    def forward(self, x: Tensor) -> Tensor:
        """x [rows, time, size] -> the same shape."""
        return self.narrow(functional.silu(self.project(self.normalise(x))))


class Transformer(nn.Module):
    """Pre-norm layers. Dropout is after the positions and at the end of each block."""

    pads_left = False  # the first token has position 0

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__()
        size = sizes.embedding_size
        layers = range(sizes.num_layers)
        self.encoder = nn.ModuleList(nn.ModuleList([Attention(sizes, 3 * size), FeedForward(sizes)]) for _ in layers)
        self.decoder = nn.ModuleList(
            nn.ModuleList([Attention(sizes, 3 * size), Attention(sizes, size), FeedForward(sizes)]) for _ in layers
        )
        self.key_values = nn.Linear(size, 2 * size * len(layers))  # of the question, for all layers at once
        self.ends = nn.ModuleList(nn.LayerNorm(size, eps=1e-6) for _ in range(2))
        self.dropout = nn.Dropout(1 - sizes.keep_prob)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor, real: Tensor) -> Tensor:
        """Return the vectors of the real target positions before the projection; see `Recurrent.forward`."""
        x = self.dropout(with_positions(source))
        for attention, feed_forward in self.encoder:
            x = x + self.dropout(attention(x, mask))
            x = x + self.dropout(feed_forward(x))
        key_values = self.key_values(self.ends[0](x)).chunk(2 * len(self.decoder), -1)
        x = self.dropout(with_positions(target))
        for number, (attention, of_question, feed_forward) in enumerate(self.decoder):
            x = x + self.dropout(attention(x, None, is_causal=True))
            x = x + self.dropout(of_question(x, mask, key_values[2 * number : 2 * number + 2]))
            x = x + self.dropout(feed_forward(x))
        return self.ends[1](x.flatten(0, 1)[real])


def with_positions(embedded: Tensor) -> Tensor:
    """Return scaled embeddings with the sines and cosines of their positions, [rows, time, embedding]."""
    size = embedded.shape[-1]
    rates = LONGEST_WAVE ** -(torch.arange(size // 2, device=embedded.device) / (size // 2))
    angles = torch.arange(embedded.shape[1], device=embedded.device)[:, None] * rates
    return embedded * size**0.5 + torch.cat([angles.sin(), angles.cos()], -1)


class Model(nn.Module):
    """An architecture between the embedding and the projection, which share their matrix."""

    def __init__(self, sizes: argparse.Namespace, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, sizes.embedding_size)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.layers = Transformer(sizes) if sizes.architecture == "transformer" else Recurrent(sizes)
        nn.init.normal_(self.embedding.weight, std=0.05)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LSTM):
                start_lstm(module)

    def batch(self, pairs: Sequence[Pair]) -> tuple[Tensor, ...]:
        """Return source and target_in, [rows, time], the real positions of the targets and their ids, all int64."""
        source, target_in, target_out = padded(pairs, self.layers.pads_left)
        real = (target_out.flatten() != PAD).nonzero()[:, 0]  # on the CPU, so that a GPU does not wait for their number
        return source, target_in, real, target_out.flatten()[real]

    def summed_nats(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, int]:
        """Return the negative log-likelihood of the replies, scalar, and their tokens, end symbols included."""
        source, target_in, real, wanted = (x.to(self.bias.device) for x in batch)
        embedded = self.embedding(source), self.embedding(target_in)
        vectors = self.layers(*embedded, source != PAD, real)
        logits = functional.linear(vectors, self.embedding.weight, self.bias)
        return functional.cross_entropy(logits.float(), wanted, reduction="sum"), len(vectors)


def start_lstm(lstm: nn.LSTM) -> None:
    """Initialise as Keras does, which learns faster than PyTorch's own start."""
    for name, weight in lstm.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(weight)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(weight)
        else:
            nn.init.zeros_(weight)
            if name.startswith("bias_ih"):
                nn.init.ones_(weight.detach()[lstm.hidden_size : 2 * lstm.hidden_size])  # of the forget gate


def padded(pairs: Sequence[Pair], left: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return source, target_in and target_out, [rows, time] int64. left: the side on which sources are padded."""
    sides = [s for s, _ in pairs], [[BOS, *t] for _, t in pairs], [[*t, EOS] for _, t in pairs]
    source, target_in, target_out = (
        pad_sequence([*map(torch.tensor, rows)], True, PAD, "left" if left and rows is sides[0] else "right")
        for rows in sides
    )
    return source, target_in, target_out


def by_length(pairs: Sequence[Pair], size: int) -> list[list[Pair]]:
    """Return batches of pairs with similar lengths."""
    ordered = sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0])))
    return [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]


def epochs(pairs: Sequence[Pair], size: int, seed: int) -> Iterator[list[Pair]]:
    """Yield batches for ever, in an order that differs from epoch to epoch."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(pairs, len(pairs))
        for begin in range(0, len(order), POOL * size):
            batches = by_length(order[begin : begin + POOL * size], size)
            rng.shuffle(batches)
            yield from batches


def read_text(name: str, ids: dict[str, int]) -> list[Pair]:
    """Read the pairs of ids of a text."""
    sides = [Path(f"{name}.{side}").read_text(encoding="utf-8").split("\n")[:-1] for side in ("src", "tgt")]
    rows = ([[ids.get(token, UNK) for token in line.split(" ")] for line in lines] for lines in sides)
    return [*zip(*rows, strict=True)]


class Training:
    """A model, its optimiser, and the batches that it is trained on."""

    def __init__(self, flags: argparse.Namespace, pairs: Sequence[Pair], vocabulary: int) -> None:
        self._device = flags.device
        self.model = Model(flags, vocabulary).to(self._device)
        self.batches = epochs(pairs, flags.batch_size, flags.seed)
        self._optimizer = torch.optim.Adam(self.model.parameters(), flags.learning_rate, fused=True)
        self._most = flags.max_gradient_norm
        self._bfloat16 = flags.precision == "bfloat16"

    def update(self, batch: tuple[Tensor, ...]) -> int:
        """Train on a batch of `Model.batch`. Returns its real target tokens."""
        self._optimizer.zero_grad()
        nats, tokens = self._nats(batch)
        (nats / tokens).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self._most)
        self._optimizer.step()
        return tokens

    def seconds(self) -> float:
        """Return a clock's time, when all steps until now are finished."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @torch.inference_mode()
    def validate(self, pairs: Sequence[Pair]) -> float:
        """Return the summed negative log-likelihood of all replies."""
        self.model.eval()
        nats = sum(self._nats(self.model.batch(some))[0].item() for some in by_length(pairs, VALIDATION_BATCH))
        self.model.train()
        return nats

    def _nats(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, int]:
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bfloat16):
            return self.model.summed_nats(batch)


def main() -> None:
    """Measure the speed or the quality, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True)
    parser.add_argument("--quality", metavar="HELD_OUT")
    parser.add_argument("--architecture", choices=("recurrent", "transformer"), default="recurrent")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    whole = {"steps": 60, "warm_up": 10, "validate_every": 100, "batch_size": 64, "seed": 1, "threads": 1}
    whole |= {"num_layers": 2, "embedding_size": 256, "rnn_size": 512, "heads": 4, "feed_forward_size": 1024}
    real = {"keep_prob": 1.0, "learning_rate": 0.001, "max_gradient_norm": 5.0}
    for name, default in {**whole, **real}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    flags = parser.parse_args()
    torch.manual_seed(flags.seed)
    torch.set_num_threads(flags.threads)
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU, which TensorFlow uses by default, too
    tokens = Path(f"{flags.text}.vocabulary").read_text(encoding="utf-8").split("\n")[:-1]
    ids = {token: number for number, token in enumerate(tokens, SPECIALS)}
    training = Training(flags, read_text(flags.text, ids), SPECIALS + len(ids))
    if flags.quality:
        print_validations(training, read_text(flags.quality, ids), flags.validate_every)
    else:
        print_rate(training, flags.steps, flags.warm_up)


def print_rate(training: Training, steps: int, warm_up: int) -> None:
    """Print the real target tokens a second; making the batches costs nothing."""
    batches = [training.model.batch(next(training.batches)) for _ in range(warm_up + steps)]
    for batch in batches[:warm_up]:
        training.update(batch)
    began = training.seconds()
    tokens = sum(map(training.update, batches[warm_up:]))
    rate = tokens / (training.seconds() - began)
    weights = sum(weight.numel() for weight in training.model.parameters())
    print(json.dumps({"target_tokens_per_s": rate, "weights": weights, "torch": torch.__version__}))


def print_validations(training: Training, held_out: Sequence[Pair], every: int) -> None:
    """Train for ever, and print each validation."""
    for step, pairs in enumerate(training.batches, 1):
        training.update(training.model.batch(pairs))
        if step % every == 0:
            print(json.dumps({"step": step, "nats": training.validate(held_out)}), flush=True)


if __name__ == "__main__":
    main()
