"""How little does certified search evaluate? `python -m experiments.certified`.

For models on clusters: the space, the part of it that is evaluated to prove the best, what rules
the rest out, and (with `--grid`) whether exhaustive search finds the same.
"""
