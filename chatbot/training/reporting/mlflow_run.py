"""MLflow, by its own client (https://mlflow.org/docs/latest/ml/tracking/)."""

import contextlib
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from chatbot.config.stored import storable
from chatbot.config.training import Settings
from chatbot.evaluation.samples import Sample
from chatbot.training.reporting.exported_run import (
    REPLY_COLUMNS,
    ExportedRun,
    Status,
    flat_values,
    reply_table,
    status_of,
)
from chatbot.training.validator import Validation

STORE, EXPERIMENT = Path("mlflow.db"), "chatbot"
STATUSES = {Status.FINISHED: "FINISHED", Status.FAILED: "FAILED", Status.INTERRUPTED: "KILLED"}
# The most values of one call, by MLflow's own limits.
MOST_METRICS, MOST_PARAMETERS = 1000, 100
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
# A server that does not answer delays training once: its requests are then repeated less than MLflow does by itself.
PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


class MLflow:
    """Writes to one run of MLflow, whose id the attempt stores, so that a resumed attempt goes on with it.

    MLFLOW_TRACKING_URI names the server or the store, by default the file mlflow.db in the current folder, as for
    `mlflow ui`; MLFLOW_EXPERIMENT_NAME the experiment.
    """

    tries_again = False

    def __init__(self, settings: Settings, towers: Sequence[str], step: int) -> None:
        """towers: their names. step: that of the checkpoint."""
        for name, value in {**QUIET, **PATIENCE}.items():
            os.environ.setdefault(name, value)
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{STORE.absolute().as_posix()}")
        self._client, self._towers, self._metric = MlflowClient(uri), towers, Metric
        self._own = ExportedRun.read(settings.run.directory / "mlflow.json")
        begun: dict[str, str] = {}  # parameters that the run has; they cannot change
        if self._own.id:
            try:
                begun = self._client.get_run(self._own.id).data.params
            except MlflowException:  # of another store, or deleted
                self._own = ExportedRun(self._own.path)
        if self._own.id:
            self._client.update_run(self._own.id, status="RUNNING")
        else:
            run = self._client.create_run(self._experiment(MlflowException), run_name=settings.run.attempt)
            self._own.id = run.info.run_id
        values = {name: str(value) for name, value in storable(settings).items() if value is not None}
        new = [Param(name, value) for name, value in values.items() if name not in begun]
        for start in range(0, len(new), MOST_PARAMETERS):
            self._client.log_batch(self._own.id, params=new[start : start + MOST_PARAMETERS])
        for name, value in values.items():
            if begun.get(name, value) != value:
                self._client.set_tag(self._own.id, f"changed.{name}", value)
        self._own.write(0)
        tqdm.write(f"mlflow: {uri}")

    def record(self, record: dict[str, Any]) -> None:
        """Write the metrics of a logged step."""
        step, now = record["step"], time.time_ns() // 1_000_000
        if step > self._own.step:
            values = iter(flat_values(record, self._towers).items())
            while part := list(itertools.islice(values, MOST_METRICS)):
                metrics = [self._metric(name, float(value), now, step) for name, value in part]
                self._client.log_batch(self._own.id, metrics)
        self._own.write(step)

    def validation(self, validation: Validation, samples: Sequence[Sample], step: int) -> None:
        """Write the replies to the samples as a file of the run, replies/STEP.json, which MLflow shows as a table."""
        if step > self._own.step:
            columns = zip(*reply_table(samples, validation.replies), strict=True)
            table = {name: list(column) for name, column in zip(REPLY_COLUMNS, columns, strict=False)}
            self._client.log_dict(self._own.id, table, f"replies/{step}.json")

    def warning(self, text: str, step: int) -> None:
        """Write a warning as a tag."""
        self._client.set_tag(self._own.id, f"warning.{step}", text)

    def close(self, stopped: str) -> None:
        """Write the status and the reason."""
        self._client.set_tag(self._own.id, "stopped", stopped or Status.FAILED.value)
        self._client.set_terminated(self._own.id, STATUSES[status_of(stopped)])

    def _experiment(self, exists: type[Exception]) -> str:
        """Return the id of the experiment, which is created if there is none."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        if self._client.get_experiment_by_name(name) is None:
            with contextlib.suppress(exists):  # another process has just created it
                return self._client.create_experiment(name)
        return self._client.get_experiment_by_name(name).experiment_id
