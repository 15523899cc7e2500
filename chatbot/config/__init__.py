"""The settings of every command. No module here imports TensorFlow, so that --help is fast."""
