"""Several processes and machines: who they are, how they start, agree, and notice that one is gone."""
