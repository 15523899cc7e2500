"""Where the variables are stored and how gradients are summed: one file for each variable update."""
