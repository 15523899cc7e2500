"""The recurrent model and the Transformer of this project, implemented in PyTorch and optimised for speed.

    python torch_model.py --text NAME --steps 60          # print the training speed as a JSON object
    python torch_model.py --text NAME --quality HELD_OUT  # train endlessly, and print a JSON object per validation

NAME.src and NAME.tgt contain one question or reply per line, with tokens separated by spaces. NAME.vocabulary contains
one token per line. All other tokens are replaced by UNK. This file requires only PyTorch.
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
# Pairs are sorted by length within groups of this number of batches.
POOL = 100
VALIDATION_BATCH = 128
MAX_WAVELENGTH = 10_000.0

Pair = tuple[list[int], list[int]]


class Recurrent(nn.Module):
    """An LSTM encoder and an LSTM decoder with Luong attention. Dropout is before each layer and at the end."""

    # Questions are padded on the left, so that the encoder ends with the last token. The encoder also reads the
    # padding. Packed sequences would avoid this, but in float32 on a CPU they take 1.8 times as long.
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
        """Return the outputs before the projection for all target tokens without padding, [tokens, embedding].

        Args:
            source: Embeddings of the questions, [rows, time, embedding].
            target: Embeddings of the replies, [rows, time, embedding].
            mask: Whether a position of a question is a token, not padding, [rows, source] bool.
            real: The indices of tokens, without padding, in the flattened targets, [tokens] int64.
        """
        memory, state = self.encoder(self.dropout(source))
        outputs, _ = self.decoder(self.dropout(target), state)
        scores = torch.bmm(self.score(outputs), memory.transpose(1, 2))  # [rows, target, source]
        weights = torch.softmax(scores.masked_fill(~mask[:, None], float("-inf")), -1)
        both = torch.cat([outputs, torch.bmm(weights.to(memory.dtype), memory)], -1)
        return self.dropout(torch.tanh(self.combine(both.flatten(0, 1)[real])))


class Block(nn.Module):
    """The base class of attention and feed-forward blocks, which start with a normalisation."""

    def __init__(self, sizes: argparse.Namespace, inner: int) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.normalise = nn.LayerNorm(sizes.embedding_size, eps=1e-6)
        self.project = nn.Linear(sizes.embedding_size, inner)

    def split(self, x: Tensor) -> Tensor:
        """Split the heads: [rows, time, size] -> [rows, heads, time, size / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Attention(Block):
    """Multi-head attention. For self-attention, `inner` must be three times the model size."""

    def __init__(self, sizes: argparse.Namespace, inner: int) -> None:
        super().__init__(sizes, inner)
        self.combine = nn.Linear(sizes.embedding_size, sizes.embedding_size)

    def forward(
        self, x: Tensor, mask: Tensor | None, key_values: Sequence[Tensor] = (), is_causal: bool = False
    ) -> Tensor:
        """Apply attention and return the output, [rows, time, size].

        Args:
            x: The inputs, [rows, time, size].
            mask: The keys to attend to, [rows, keys] bool; None for all keys.
            key_values: Keys and values, [rows, keys, size] each; () for self-attention.
            is_causal: Whether each position attends only to itself and earlier positions.
        """
        projected = self.project(self.normalise(x))
        factors = [projected, *key_values] if key_values else projected.chunk(3, -1)
        wide = None if mask is None else mask[:, None, None]
        means = functional.scaled_dot_product_attention(*map(self.split, factors), attn_mask=wide, is_causal=is_causal)
        return self.combine(means.transpose(1, 2).flatten(2))


class FeedForward(Block):
    """Two linear layers with a SiLU activation between them."""

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__(sizes, sizes.feed_forward_size)
        self.narrow = nn.Linear(sizes.feed_forward_size, sizes.embedding_size)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers, [rows, time, size] -> [rows, time, size]."""
        return self.narrow(functional.silu(self.project(self.normalise(x))))


class Transformer(nn.Module):
    """A pre-norm Transformer. Dropout is applied to the embeddings and to the output of each block."""

    pads_left = False  # the first token has position 0

    def __init__(self, sizes: argparse.Namespace) -> None:
        super().__init__()
        size = sizes.embedding_size
        layers = range(sizes.num_layers)
        self.encoder = nn.ModuleList(nn.ModuleList([Attention(sizes, 3 * size), FeedForward(sizes)]) for _ in layers)
        self.decoder = nn.ModuleList(
            nn.ModuleList([Attention(sizes, 3 * size), Attention(sizes, size), FeedForward(sizes)]) for _ in layers
        )
        self.key_values = nn.Linear(size, 2 * size * len(layers))  # keys and values of the question, for all layers
        self.ends = nn.ModuleList(nn.LayerNorm(size, eps=1e-6) for _ in range(2))
        self.dropout = nn.Dropout(1 - sizes.keep_prob)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor, real: Tensor) -> Tensor:
        """Return the outputs before the projection; see `Recurrent.forward`."""
        x = self.dropout(with_positions(source))
        for attention, feed_forward in self.encoder:
            x = x + self.dropout(attention(x, mask))
            x = x + self.dropout(feed_forward(x))
        key_values = self.key_values(self.ends[0](x)).chunk(2 * len(self.decoder), -1)
        x = self.dropout(with_positions(target))
        for number, (attention, cross_attention, feed_forward) in enumerate(self.decoder):
            x = x + self.dropout(attention(x, None, is_causal=True))
            x = x + self.dropout(cross_attention(x, mask, key_values[2 * number : 2 * number + 2]))
            x = x + self.dropout(feed_forward(x))
        return self.ends[1](x.flatten(0, 1)[real])


def with_positions(embedded: Tensor) -> Tensor:
    """Scale embeddings and add sinusoidal position embeddings, [rows, time, embedding]."""
    size = embedded.shape[-1]
    rates = MAX_WAVELENGTH ** -(torch.arange(size // 2, device=embedded.device) / (size // 2))
    angles = torch.arange(embedded.shape[1], device=embedded.device)[:, None] * rates
    return embedded * size**0.5 + torch.cat([angles.sin(), angles.cos()], -1)


class Model(nn.Module):
    """A complete model: embedding, layers and projection. The embedding and the projection have the same matrix."""

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
        """Create the int64 tensors for a batch.

        Returns:
            The questions and the decoder inputs, [rows, time]; the indices of tokens, without padding, in the flattened
            targets; and the target ids at these indices.
        """
        source, target_in, target_out = padded(pairs, self.layers.pads_left)
        real = (target_out.flatten() != PAD).nonzero()[:, 0]  # nonzero is slow on a GPU, so it runs on the CPU
        return source, target_in, real, target_out.flatten()[real]

    def summed_nats(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, int]:
        """Return the total negative log-likelihood of the replies and the number of their tokens, including EOS."""
        source, target_in, real, targets = (x.to(self.bias.device) for x in batch)
        embedded = self.embedding(source), self.embedding(target_in)
        vectors = self.layers(*embedded, source != PAD, real)
        logits = functional.linear(vectors, self.embedding.weight, self.bias)
        return functional.cross_entropy(logits.float(), targets, reduction="sum"), len(vectors)


def start_lstm(lstm: nn.LSTM) -> None:
    """Initialise the weights in the same way as Keras. With PyTorch's initialisation, the model learns more slowly."""
    for name, weight in lstm.named_parameters():
        if name.startswith("weight_ih"):
            nn.init.xavier_uniform_(weight)
        elif name.startswith("weight_hh"):
            nn.init.orthogonal_(weight)
        else:
            nn.init.zeros_(weight)
            if name.startswith("bias_ih"):
                nn.init.ones_(weight.detach()[lstm.hidden_size : 2 * lstm.hidden_size])  # bias of the forget gate


def padded(pairs: Sequence[Pair], left: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return padded questions, decoder inputs and decoder targets, [rows, time] int64.

    If `left` is true, questions are padded on the left.
    """
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
    """Yield batches endlessly, in a different order in each epoch."""
    rng = random.Random(seed)
    while True:
        order = rng.sample(pairs, len(pairs))
        for begin in range(0, len(order), POOL * size):
            batches = by_length(order[begin : begin + POOL * size], size)
            rng.shuffle(batches)
            yield from batches


def read_text(name: str, ids: dict[str, int]) -> list[Pair]:
    """Read NAME.src and NAME.tgt, and return the pairs as token ids."""
    sides = [Path(f"{name}.{side}").read_text(encoding="utf-8").split("\n")[:-1] for side in ("src", "tgt")]
    rows = ([[ids.get(token, UNK) for token in line.split(" ")] for line in lines] for lines in sides)
    return [*zip(*rows, strict=True)]


class Training:
    """A model with its optimizer and its training batches."""

    def __init__(self, flags: argparse.Namespace, pairs: Sequence[Pair], vocabulary: int) -> None:
        self._device = flags.device
        self.model = Model(flags, vocabulary).to(self._device)
        self.batches = epochs(pairs, flags.batch_size, flags.seed)
        self._optimizer = torch.optim.Adam(self.model.parameters(), flags.learning_rate, fused=True)
        self._max_norm = flags.max_gradient_norm
        self._bfloat16 = flags.precision == "bfloat16"

    def update(self, batch: tuple[Tensor, ...]) -> int:
        """Train on a result of `Model.batch`, and return the number of its target tokens without padding."""
        self._optimizer.zero_grad()
        nats, tokens = self._nats(batch)
        (nats / tokens).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self._max_norm)
        self._optimizer.step()
        return tokens

    def seconds(self) -> float:
        """Wait until all steps are finished, and return the current time in seconds."""
        if self._device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    @torch.inference_mode()
    def validate(self, pairs: Sequence[Pair]) -> float:
        """Return the total negative log-likelihood of all replies."""
        self.model.eval()
        nats = sum(self._nats(self.model.batch(rows))[0].item() for rows in by_length(pairs, VALIDATION_BATCH))
        self.model.train()
        return nats

    def _nats(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, int]:
        with torch.autocast(self._device, torch.bfloat16, enabled=self._bfloat16):
            return self.model.summed_nats(batch)


def main() -> None:
    """Measure the speed or the quality, and print the results as JSON."""
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
    torch.set_float32_matmul_precision("high")  # use TF32 on a GPU, which is the default of TensorFlow
    tokens = Path(f"{flags.text}.vocabulary").read_text(encoding="utf-8").split("\n")[:-1]
    ids = {token: number for number, token in enumerate(tokens, SPECIALS)}
    training = Training(flags, read_text(flags.text, ids), SPECIALS + len(ids))
    if flags.quality:
        print_validations(training, read_text(flags.quality, ids), flags.validate_every)
    else:
        print_rate(training, flags.steps, flags.warm_up)


def print_rate(training: Training, steps: int, warm_up: int) -> None:
    """Print the target tokens per second, not counting padding and the time to create batches."""
    batches = [training.model.batch(next(training.batches)) for _ in range(warm_up + steps)]
    for batch in batches[:warm_up]:
        training.update(batch)
    began = training.seconds()
    tokens = sum(map(training.update, batches[warm_up:]))
    rate = tokens / (training.seconds() - began)
    weights = sum(weight.numel() for weight in training.model.parameters())
    print(json.dumps({"target_tokens_per_s": rate, "weights": weights, "torch": torch.__version__}))


def print_validations(training: Training, held_out: Sequence[Pair], every: int) -> None:
    """Train endlessly, and print the result of each validation."""
    for step, pairs in enumerate(training.batches, 1):
        training.update(training.model.batch(pairs))
        if step % every == 0:
            print(json.dumps({"step": step, "nats": training.validate(held_out)}), flush=True)


if __name__ == "__main__":
    main()
