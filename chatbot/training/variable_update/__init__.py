"""Where the variables live and how gradients meet: one file a way."""
