"""Questions answered by running things: one folder per question, and what their
commands have in common (`command.py`). Nothing else imports them."""
