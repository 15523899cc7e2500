"""The cost of a ring all-reduce, and the speed-up of many GPUs that it predicts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

PLANNED = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# The backward pass's share of a step: it has two matrix products for each one of the forward pass.
BACKWARD_SHARE = 2 / 3


class Link(NamedTuple):
    """The slowest link of a ring: nominal bytes a second in one direction, and seconds of latency of one message."""

    bytes_per_s: float
    latency: float  # including software


LINKS = {
    "pcie3": Link(15.8e9, 10e-6),
    "pcie4": Link(31.5e9, 10e-6),
    "nvlink": Link(300e9, 5e-6),  # A100, all its links
    "10gbe": Link(1.25e9, 50e-6),
    "25gbe": Link(3.125e9, 50e-6),
    "100gbe": Link(12.5e9, 20e-6),
    "infiniband": Link(25e9, 5e-6),  # HDR
}


def ring_bytes(gradient_bytes: float, members: int) -> float:
    """Return the bytes that each member of a ring sends in one all-reduce: 2 (n - 1) / n x gradient_bytes.

    Reduce-scatter and all-gather each send (n - 1) pieces of 1/n. This is the minimum of any all-reduce
    (Patarasuk and Yuan, 2009).
    """
    return 2 * (members - 1) / members * gradient_bytes


def ring_seconds(gradient_bytes: float, members: int, link: Link) -> float:
    """Return the seconds of one all-reduce: bytes over bandwidth, plus the latency of 2 (n - 1) messages."""
    return ring_bytes(gradient_bytes, members) / link.bytes_per_s + 2 * (members - 1) * link.latency


def exposed_seconds(step_seconds: float, early_exchange: float, last_exchange: float) -> float:
    """Return the part of the exchanges that adds to a step when each stage's gradients are exchanged once computed.

    early_exchange: the seconds of the exchanges of all stages but the last, which overlap with the backward pass as far
    as they fit (Zhang et al., Poseidon, 2017). last_exchange: those of the last stage, after which no backward pass
    remains. The first gradients are assumed to be ready when the backward pass begins, so this is a lower bound.
    """
    return last_exchange + max(0.0, early_exchange - BACKWARD_SHARE * step_seconds)


def speed_ups(step_seconds: float, gradient_bytes: float, last_bytes: float, n: int, link: Link) -> dict[str, float]:
    """Return the throughput of n GPUs over that of one, each with the batch of the one.

    speed_up: the exchange, of exchange_s, follows the step of step_seconds. overlapped: all stages but the last, with
    last_bytes of the gradient_bytes, are exchanged during the backward pass. staged: the exchange overlaps with the
    next step (--staged-variables).
    """
    exchange = ring_seconds(gradient_bytes, n, link)
    early, last = (ring_seconds(size, n, link) for size in (gradient_bytes - last_bytes, last_bytes))
    steps = {
        "speed_up": step_seconds + exchange,
        "overlapped": step_seconds + exposed_seconds(step_seconds, early, last),
        "staged": max(step_seconds, exchange),
    }
    return {**{name: n * step_seconds / step for name, step in steps.items()}, "exchange_s": exchange}


def plan(step_seconds: float, gradient_bytes: float, last_bytes: float, links: Sequence[str]) -> list[dict[str, Any]]:
    """Return the predicted speed-ups of 2 to 1,024 GPUs on each link; see `speed_ups`."""
    return [
        {"link": link, "gpus": n, **speed_ups(step_seconds, gradient_bytes, last_bytes, n, LINKS[link])}
        for link in links
        for n in PLANNED
    ]
