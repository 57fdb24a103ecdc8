"""`--softmax`: which words are scored, and how."""
