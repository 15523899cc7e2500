"""Commands for the attempts in checkpoints/: a table, a comparison, and what is done with their folders."""
