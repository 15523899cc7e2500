"""Training in several processes or on several machines: addresses, processes, communication, and loss of a machine."""
