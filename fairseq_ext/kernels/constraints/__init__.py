"""Search with required phrases."""
