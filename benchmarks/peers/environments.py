"""Virtual environments of the peers, made from the requirements beside this file, made once.

Requirements are pinned by `uv pip compile --universal`, without the CUDA packages of PyTorch, which pip installs if the
build of PyTorch that the index gives needs them.
"""

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import filelock

from benchmarks.benchmark import log
from benchmarks.processes import output_of, python
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
                output_of(python("-m", "venv", home), folder)
                install = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                output_of([*install, "-r", requirements.absolute()], folder)
                if alone:
                    output_of([*install, "--no-deps", *alone], folder)
                (home / COMPLETE).touch()
    except OSError as error:
        raise UserError(f"--environments {folder}: {error.strerror}; give a folder that can be written") from None
    return home
