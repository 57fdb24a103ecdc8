"""A row of parallel decoding and its drafts."""
