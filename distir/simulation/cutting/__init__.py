"""Where the stages of a pipeline begin: blocks cut into stages of equal time that fit in memory."""
