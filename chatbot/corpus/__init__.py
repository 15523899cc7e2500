"""From files to batches: readers -> cleaning -> tokenizer -> vocabulary -> encoded -> batches."""
