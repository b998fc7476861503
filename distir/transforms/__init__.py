"""Function to function: derivatives, blocks, placement. None of them knows a model's name."""
