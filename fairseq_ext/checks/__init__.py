"""What is refused before anything runs: pairs that cannot work together, values out of their range."""
