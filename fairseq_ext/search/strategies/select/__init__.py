"""`--select`: the choice of continuations of a sentence."""
