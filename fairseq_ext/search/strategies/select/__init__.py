"""`--select`: which continuations of a sentence go on."""
