"""Questions beside a search: what samplers lose, how many devices, what fits, what would have to
change."""
