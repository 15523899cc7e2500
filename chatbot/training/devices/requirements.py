"""Why TensorFlow cannot use a GPU: the driver, the CUDA libraries or the GPU itself."""

import ctypes
import ctypes.util
import importlib.util
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chatbot.training.devices.gpus import Gpu, driver

# The libraries that TensorFlow 2.21 opens when it starts; without one of them, it sees no GPU.
LIBRARIES = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)
# The first driver for Linux that runs programs of CUDA 12 (release notes of NVIDIA's CUDA Toolkit).
FIRST_DRIVER = 525


def why_unusable(gpus: Sequence[Gpu], seen: int, build: Mapping[str, Any]) -> str | None:
    """Return the reason why TensorFlow cannot use all of these GPUs, with a remedy; None if no reason is found.

    seen: the number of GPUs that TensorFlow lists, with those that are too old. build: `tf.sysconfig.get_build_info`.
    """
    if not build.get("is_cuda_build"):
        return "this TensorFlow was built without CUDA; install the one of `make gpu`"
    least = least_capability(build)
    for gpu in gpus:
        if gpu.capability is not None and gpu.capability < least:
            own = f"GPU {gpu.id} ({gpu.name}) has compute capability {_dotted(gpu.capability)}"
            return f"{own}, and this TensorFlow needs {_dotted(least)} or higher; select other GPUs with --gpus"
    if seen == len(gpus):
        return None
    needed = int(str(build["cuda_version"]).partition(".")[0])
    found = driver()
    if found is not None and found.cuda[0] < needed:
        supported = f"NVIDIA's driver {found.version} supports CUDA up to {_dotted(found.cuda)}"
        return f"{supported}, and this TensorFlow needs CUDA {needed}; update it to {FIRST_DRIVER} or newer"
    for library in LIBRARIES:
        if failure := why_not_opened(library):
            return f"TensorFlow cannot open the CUDA library {library} ({failure}); install it with `make gpu`"
    return None


def least_capability(build: Mapping[str, Any]) -> tuple[int, int]:
    """Return the lowest compute capability that TensorFlow was built for; entries are such as sm_60 or compute_90."""
    numbers = [re.sub(r"\D", "", entry) for entry in build.get("cuda_compute_capabilities", ())]
    return min(((int(number[:-1]), int(number[-1])) for number in numbers), default=(0, 0))


def why_not_opened(library: str) -> str | None:
    """Return why a shared library cannot be opened, from NVIDIA's packages or the system's paths; None if it can."""
    paths = packaged(library)
    try:
        ctypes.CDLL(str(paths[0]) if paths else library)
    except OSError as error:
        if not str(error).startswith(f"{library}:"):
            return str(error)  # damaged, or a library that it needs is missing
        others = other_versions(library)
        return f"found {', '.join(others)} instead" if others else "not found"
    return None


def packaged(pattern: str) -> list[Path]:
    """Return the libraries of NVIDIA's packages in this Python environment whose names match a pattern."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return sorted(path for folder in folders for path in Path(folder).glob(f"*/lib/{pattern}"))


def other_versions(library: str) -> list[str]:
    """Return the names of other versions of a library, such as libcudnn.so.8 for libcudnn.so.9."""
    stem = library.partition(".so")[0]
    system = ctypes.util.find_library(stem.removeprefix("lib"))
    return sorted({path.name for path in packaged(f"{stem}.so.*")} | ({system} if system else set()))


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
