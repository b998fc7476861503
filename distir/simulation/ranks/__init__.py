"""What each pipeline rank does with an iteration: of one plan, or of many plans as columns."""
