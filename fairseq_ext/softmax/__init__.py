"""What several softmaxes share: shortlists, the output layer by itself, error bounds, the LSH index, and their statistics."""
