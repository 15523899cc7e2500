"""How good a model is: held-out likelihood, and what its replies look like."""
