"""`--stop`: the decision when a sentence is final."""
