"""How many measurements find the best of strategies that others measured."""
