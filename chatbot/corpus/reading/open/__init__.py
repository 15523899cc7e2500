"""Files of every kind as text: containers, compression, charsets."""
