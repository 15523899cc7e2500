"""Virtual environments of the peers, made from the requirements beside this file, and how programs run in them.

Requirements are pinned by `uv pip compile --universal`, without the CUDA packages of PyTorch, which pip installs if the
build of PyTorch that the index gives needs them.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import filelock

from benchmarks.report import log
from chatbot.errors import UserError
from chatbot.flags import setting

HERE = Path(__file__).parent
# Packages of a peer that are installed without their dependencies. OpenNMT-py 3.5.1 asks for a PyTorch below 2.3, but
# runs on the newer one of requirements-opennmt.txt, too, which is faster.
ALONE = {"opennmt": ["OpenNMT-py==3.5.1"]}
# A file in an environment that is complete.
COMPLETE = "complete"


def environments_flag() -> Any:
    """Return the field of a `Flags` class for the folder of all environments."""
    text = "folder of the peers' virtual environments, which are made once; default: duida/peers in the user's cache"
    return setting(None, text, group="peers", metavar="FOLDER")


def environment(peer: str, environments: str | None) -> Path:
    """Return the folder of the peer's environment, which is made if it is not there or not complete.

    peer: "torch" or "opennmt". environments: a value of `environments_flag`. The folder's name has a hash of the
    requirements and of Python's version. Processes that need the same environment wait for each other. Raises UserError
    if the packages cannot be installed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(environments or cache / "duida" / "peers").absolute()
    requirements, alone = HERE / f"requirements-{peer}.txt", ALONE.get(peer, [])
    key = f"{requirements.read_text(encoding='utf-8')}{alone}{sys.version}"
    home = folder / f"{peer}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{home}.lock"):
            if not (home / COMPLETE).exists():
                log(f"{home}: installing the packages, once; this takes minutes")
                shutil.rmtree(home, ignore_errors=True)
                output_of([sys.executable, "-m", "venv", home], folder)
                install = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                output_of([*install, "-r", requirements.absolute()], folder)
                if alone:
                    output_of([*install, "--no-deps", *alone], folder)
                (home / COMPLETE).touch()
    except OSError as error:
        raise UserError(f"--environments {folder}: {error.strerror}; give a folder that can be written") from None
    return home


def output_of(command: Sequence[object], folder: Path, cores: int = 1, seconds: float | None = None) -> str:
    """Run a program in a folder. Returns its standard output and error.

    cores: the threads of OpenMP. seconds: after which the program is ended, however far it is; None: it ends by itself.
    Raises UserError if it fails.
    """
    words = [str(word) for word in command]
    # OpenNMT-py's checkpoints hold more than weights, which PyTorch refuses to load by default.
    variables = {**os.environ, "OMP_NUM_THREADS": str(cores), "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    process = subprocess.Popen(
        words, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]
    finally:
        process.kill()  # does nothing to a process that has ended
    if process.returncode:
        program = " ".join([Path(words[0]).name, *words[1:3]])
        raise UserError(f"{program[:60]}: exit code {process.returncode}: {last_error(output)[:120]}")
    return output


def last_error(output: str) -> str:
    """Return the last line of an output that speaks of an error, or else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1])
