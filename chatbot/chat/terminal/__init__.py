"""An interactive chat in a terminal."""
