"""The times at which the actions of a schedule start: for one plan, or for many plans as columns of
arrays."""
