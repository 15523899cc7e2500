"""Reading and writing pretrained models: settings, tokens and weights."""
