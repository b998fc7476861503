"""Questions answered by running things: one folder per question. Nothing imports them."""
