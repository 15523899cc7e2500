"""The clients of the services in --report-to, which are optional packages."""

import importlib.util
from collections.abc import Sequence

from chatbot.config.run import MLFLOW, WANDB
from chatbot.errors import UserError

# The modules that an exporter needs beyond the dependencies of this package, and the command that installs them.
NEEDED = {
    WANDB: (("wandb",), "pip install wandb"),
    MLFLOW: (("mlflow", "sqlalchemy", "alembic"), "pip install mlflow-skinny sqlalchemy alembic"),
}


def check_clients(names: Sequence[str]) -> None:
    """Raise UserError for an exporter whose client is not installed. Nothing is imported, which takes seconds."""
    for name in names:
        modules, command = NEEDED.get(name, ((), ""))
        missing = [module for module in modules if not _is_installed(module)]
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise UserError(f"--report-to {name}: {', '.join(missing)} {verb} not installed; run `{command}`")


def _is_installed(module: str) -> bool:
    """Return whether a package can be imported. A folder such as wandb/, where its client writes, is none."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None
