"""A study: its trials, the loop that makes them, and when it ends."""
