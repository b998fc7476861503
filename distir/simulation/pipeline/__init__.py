"""When the actions of a schedule start: of one plan, or of many plans as columns."""
