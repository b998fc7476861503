"""A schedule as data: actions, their order and its text, families, validation."""
