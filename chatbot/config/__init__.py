"""Settings of all commands. This package does not import TensorFlow, which would make --help slow."""
