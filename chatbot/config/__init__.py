"""The settings of every command. Nothing here imports TensorFlow, so that --help answers at once."""
