"""The cost of a ring all-reduce, and the speed-up of many GPUs that it predicts."""

import dataclasses
from collections.abc import Sequence
from typing import Any

PLANNED = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

# The backward pass's share of a step: it has two matrix products for each one of the forward pass.
BACKWARD_SHARE = 2 / 3


@dataclasses.dataclass(frozen=True)
class Link:
    """The slowest link of a ring: nominal rate in one direction, and latency of one message including software."""

    name: str
    bytes_per_s: float
    latency: float  # seconds


LINKS = {
    link.name: link
    for link in (
        Link("pcie3", 15.8e9, 10e-6),
        Link("pcie4", 31.5e9, 10e-6),
        Link("nvlink", 300e9, 5e-6),  # A100, all its links
        Link("10gbe", 1.25e9, 50e-6),
        Link("25gbe", 3.125e9, 50e-6),
        Link("100gbe", 12.5e9, 20e-6),
        Link("infiniband", 25e9, 5e-6),  # HDR
    )
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


def speed_up(step_seconds: float, gradient_bytes: float, members: int, link: Link, staged: bool = False) -> float:
    """Return the throughput of n GPUs over that of one. The batch size of each GPU is the same in both cases.

    step_seconds: a step of one GPU alone. staged: the exchange overlaps with the computation of the next step.
    """
    exchange = ring_seconds(gradient_bytes, members, link)
    step = max(step_seconds, exchange) if staged else step_seconds + exchange
    return members * step_seconds / step


def exposed_seconds(step_seconds: float, early_exchange: float, last_exchange: float) -> float:
    """Return the part of the exchanges that adds to a step when each stage's gradients are exchanged once computed.

    exposed = last_exchange + max(0, early_exchange - BACKWARD_SHARE x step_seconds)

    early_exchange: the seconds of the exchanges of all stages but the last, which overlap with the backward pass as far
    as they fit (Zhang et al., Poseidon, 2017). last_exchange: those of the last stage, after which no backward pass
    remains. The first gradients are assumed to be ready when the backward pass begins, so this is a lower bound.
    """
    return last_exchange + max(0.0, early_exchange - BACKWARD_SHARE * step_seconds)


def overlapped_speed_up(
    step_seconds: float, gradient_bytes: float, last_bytes: float, members: int, link: Link
) -> float:
    """Return `speed_up` for exchanges that overlap with the backward pass of the same step, in two ring all-reduces.

    The step takes step_seconds + exposed_seconds(step_seconds, ring_seconds(gradient_bytes - last_bytes),
    ring_seconds(last_bytes)). last_bytes: the gradients of the last stage of the backward pass.
    """
    early, last = (ring_seconds(size, members, link) for size in (gradient_bytes - last_bytes, last_bytes))
    return members * step_seconds / (step_seconds + exposed_seconds(step_seconds, early, last))


def plan(step_seconds: float, gradient_bytes: float, last_bytes: float, links: Sequence[Link]) -> list[dict[str, Any]]:
    """Print the formula and the predicted speed-up for each link. Returns the rows of the table.

    last_bytes: the gradients of the last stage of the backward pass, which `gradient_bytes` includes.
    """
    print(
        "Plan: n GPUs, each with the same batch size as one GPU. An exchange takes\n"
        "2 (n - 1) / n x bytes / bandwidth + 2 (n - 1) x latency; a step takes\n"
        f"{step_seconds * 1e3:.1f} ms + the exchange of {gradient_bytes / 1e6:.1f} MB; where stages are exchanged "
        "during the backward pass\n"
        f"(overlapped), + the exchange of the last {last_bytes / 1e6:.1f} MB + what is left of the others after "
        f"{BACKWARD_SHARE:.0%} of the step;\n"
        "with --staged-variables (in brackets), the longer of the step and the exchange."
    )
    rows = []
    for link in links:
        print(f"{link.name}: {link.bytes_per_s / 1e9:g} GB/s, {link.latency * 1e6:g} microseconds")
        for n in PLANNED:
            plain, staged = (speed_up(step_seconds, gradient_bytes, n, link, late) for late in (False, True))
            overlapped = overlapped_speed_up(step_seconds, gradient_bytes, last_bytes, n, link)
            exchange = ring_seconds(gradient_bytes, n, link)
            print(
                f"  {n:5,} GPUs {plain:9,.1f} x {plain / n:5.0%}  overlapped {overlapped:9,.1f} x {overlapped / n:5.0%}"
                f"  ({staged:,.1f} x)  exchange {exchange * 1e3:,.1f} ms"
            )
            speed_ups = {"speed_up": plain, "overlapped": overlapped, "staged": staged}
            rows.append({"link": link.name, "gpus": n, **speed_ups, "exchange_s": exchange})
    return rows
