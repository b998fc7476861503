"""What a choice per layer of what recomputes gains, where memory is tight."""
