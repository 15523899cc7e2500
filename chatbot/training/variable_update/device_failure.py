"""The reaction to a GPU that fails in mid-run: an error that names it."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from chatbot.errors import DeviceError, UserError
from chatbot.training.devices import Tower
from chatbot.training.gpus import driver, silent_gpus

RESUME = "the same command resumes from the last checkpoint"

# What TensorFlow's errors say of a GPU that has failed. CUDA reports an error of a kernel at any later call, under the
# name of the error (github.com/tensorflow/tensorflow/issues/25866, 41891, 46247), as an InternalError; a GPU that has
# fallen off the bus is CUDA_ERROR_UNKNOWN (issues/27281), or appears as the second text alone (issues/45901). NCCL's
# text, of an UnknownError, is that of issues/59890.
FAILURES = re.compile(
    r"(CUDA_ERROR_(?!OUT_OF_MEMORY)\w+|GPU sync failed|Could not synchronize CUDA stream|GPU is lost"
    r"|unspecified launch failure|an illegal memory access was encountered|uncorrectable ECC error encountered"
    r"|(Error invoking NCCL: )?unhandled cuda error)",
    re.IGNORECASE,
)
# A GPU newer than TensorFlow's kernels compiles them when they are first used, which needs a driver that knows them.
TOO_NEW = re.compile(r"CUDA_ERROR_(UNSUPPORTED_PTX_VERSION|NO_BINARY_FOR_GPU|INVALID_PTX)|no kernel image is available")
PTX_DRIVER = 555  # the first with CUDA 12.5, which TensorFlow 2.21 was built with
# Memory that runs out on a GPU, and errors of other machines.
NOT_HERE = re.compile(r"out of memory|Collective ops is aborted by", re.IGNORECASE)
DEVICE = re.compile(r"device:GPU:(\d+)", re.IGNORECASE)


class Place(NamedTuple):
    """A logical GPU of a tower."""

    device: str  # such as /GPU:1
    number: int  # of the physical GPU
    model: str  # of the hardware


@contextlib.contextmanager
def device_errors(towers: Sequence[Tower]) -> Iterator[None]:
    """Raise a GPU's failure as an error that names it (`device_failure`), wherever TensorFlow reports it."""
    try:
        yield
    except tf.errors.OpError as error:
        failure = device_failure(error, towers)
        if failure is None:
            raise
        raise failure from error


def device_failure(error: tf.errors.OpError, towers: Sequence[Tower]) -> UserError | None:
    """Return the error to raise for a GPU of these towers that has failed; None if no GPU is the cause.

    A GPU that does not answer NVML is the cause, whatever the text says: TensorFlow names the device of the operation
    that noticed the failure. If all answer, it is the device that the text names, or one of all.
    """
    places, text = places_of(towers), str(error)
    if not places:
        return None
    if TOO_NEW.search(text):
        found = driver()
        version = "" if found is None else f" {found.version}"
        return UserError(
            f"NVIDIA's driver{version} cannot run TensorFlow's kernels on {_named(places)}; update it to "
            f"{PTX_DRIVER} or newer; {RESUME}"
        )
    lost = lost_gpus(towers)
    if lost is not None:
        return lost
    cause = FAILURES.search(text)
    if cause is None or NOT_HERE.search(text):
        return None
    devices = {f"/GPU:{number}" for number in DEVICE.findall(text)}
    suspects = [place for place in places if place.device in devices] or places
    return _failed(f"{'one of the ' if _are_several(suspects) else ''}{_named(suspects)} failed ({cause.group()})")


def lost_gpus(towers: Sequence[Tower]) -> DeviceError | None:
    """Return the error that names the GPUs of these towers that do not answer NVML; None if all answer."""
    silent = silent_gpus()
    lost = [place for place in places_of(towers) if place.number in silent]
    if not lost:
        return None
    return _failed(f"{_named(lost)} {'do' if _are_several(lost) else 'does'} not answer ({silent[lost[0].number]})")


def places_of(towers: Sequence[Tower]) -> list[Place]:
    """Return the GPUs of the towers."""
    places = []
    for tower in towers:
        devices = dict.fromkeys(tower.parts) if tower.parts else [tower.device]
        for device, name in zip(devices, tower.name.split("+"), strict=True):
            gpu = re.match(r"gpu_(\d+)", name)
            if gpu:
                places.append(Place(device, int(gpu[1]), tower.model))
    return places


def _are_several(places: Sequence[Place]) -> bool:
    """Return whether logical GPUs belong to several physical ones."""
    return len({place.number for place in places}) > 1


def _named(places: Sequence[Place]) -> str:
    """Return such as "GPU 3 (NVIDIA A100)", or "GPUs 0, 1"."""
    if _are_several(places):
        return f"GPUs {', '.join(dict.fromkeys(str(place.number) for place in places))}"
    return f"GPU {places[0].number} ({places[0].model})"


def _failed(what: str) -> DeviceError:
    return DeviceError(f"{what}; {RESUME}. `dmesg` may say why (Xid); --gpus can leave it out")
