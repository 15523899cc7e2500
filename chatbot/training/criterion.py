"""Which of two validations is better: by --best-by and --least-distinct."""

import dataclasses
import math

from chatbot.config.learning import LOWER_IS_BETTER, NATS, LearningSettings


@dataclasses.dataclass(frozen=True)
class Criterion:
    """Compares validations by one measure, and by a floor for the variety of replies."""

    measure: str = NATS
    least_distinct: float | None = None  # the floor for distinct_characters_2

    @classmethod
    def of(cls, settings: LearningSettings) -> "Criterion":
        """Return the criterion of these settings."""
        return cls(settings.best_by, settings.least_distinct)

    def prefers(
        self, value: float | None, distinct: float | None, best_value: float | None, best_distinct: float | None
    ) -> bool:
        """Return whether a validation is better than the best one before.

        value, best_value: the measure of each; distinct, best_distinct: distinct_characters_2. Below the floor is worse
        than above it; on the same side of it, the measure decides. A measure that is not a finite number is never best.
        """
        if value is None or not math.isfinite(value):
            return False
        if best_value is None:
            return True
        varied, best_varied = self._varied(distinct), self._varied(best_distinct)
        if varied != best_varied:
            return varied
        return value < best_value if self.measure in LOWER_IS_BETTER else value > best_value

    def shown(self, value: float) -> str:
        """Return a value with the name of the measure: "4.8846 nats per character", "0.2130 relevance_at_1"."""
        return f"{value:.4f} {'nats per character' if self.measure == NATS else self.measure}"

    def _varied(self, distinct: float | None) -> bool:
        return self.least_distinct is None or (distinct is not None and distinct >= self.least_distinct)
