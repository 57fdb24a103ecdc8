"""Where draft tokens come from: each file one source. Drafts change how many calls a translation takes, never the translation."""
