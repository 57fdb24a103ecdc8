"""`--stop`: when a sentence is final."""
