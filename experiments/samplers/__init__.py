"""How soon samplers come near the best, over many problems whose best is known."""
