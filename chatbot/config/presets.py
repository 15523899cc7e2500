"""Presets: the defaults of a new attempt that follow its corpus. An attempt keeps the values that it began with."""

from typing import Any

# The values of each preset: of settings of the model and of the optimisation, which change no training pair. A setting
# that needs another one comes after it. BENCHMARKS.md compares them.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"copy": True, "ngrams": 3, "average": 0.999},
    "small": {"copy": True, "ngrams": 3, "average": 0.999},
    "medium": {"copy": True, "ngrams": 4, "ngram_weight": 0.3, "average": 0.999},
    "large": {"copy": True, "average": 0.999},
}
# The preset of a corpus is the first one with more training pairs than the corpus, or the last preset.
FEWER_PAIRS_THAN = {"tiny": 2_000, "small": 50_000, "medium": 300_000}


def preset_for(pairs: int) -> str:
    """Return the preset of a corpus with this many training pairs."""
    return next((name for name, limit in FEWER_PAIRS_THAN.items() if pairs < limit), [*PRESETS][-1])


def settings_of_presets() -> frozenset[str]:
    """Return the names of all settings that a preset sets."""
    return frozenset(name for values in PRESETS.values() for name in values)
