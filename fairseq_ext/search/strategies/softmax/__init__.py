"""`--softmax`: the scored words, and how they are scored."""
