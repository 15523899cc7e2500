"""From a text to its pairs, by format: tables, nested values, conversations."""
