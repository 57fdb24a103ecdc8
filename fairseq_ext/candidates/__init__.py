"""Many candidates and the best of them: minimum Bayes risk decoding (`--mbr`)."""
