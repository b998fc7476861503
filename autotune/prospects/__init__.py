"""What is known of strategies before they are tried, and what is left to gain."""
