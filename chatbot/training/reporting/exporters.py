"""The exporters of --report-to."""

from collections.abc import Sequence

from chatbot.config.run import CSV, MLFLOW, TENSORBOARD, WANDB
from chatbot.config.training import Settings
from chatbot.training.reporting.exporter import Exporter
from chatbot.training.run import Run

# Those that write to files of their own. The others may send to a server, which may not answer.
LOCAL = (TENSORBOARD, CSV)


def open_exporter(name: str, settings: Settings, towers: Sequence[str], step: int, run: Run | None = None) -> Exporter:
    """Return an exporter that goes on after this step. May raise any exception of its client.

    towers: their names. run: as for `TensorBoard`.
    """
    if name == TENSORBOARD:
        from chatbot.training.reporting.tensorboard import TensorBoard

        return TensorBoard(settings, towers, step, run)
    if name == CSV:
        from chatbot.training.reporting.csv_file import Csv

        return Csv(settings, towers, step)
    if name == WANDB:
        from chatbot.training.reporting.wandb_run import Wandb

        return Wandb(settings, towers, step)
    assert name == MLFLOW
    from chatbot.training.reporting.mlflow_run import MLflow

    return MLflow(settings, towers, step)
