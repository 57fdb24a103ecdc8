"""`--schedule`: when sentences start."""
