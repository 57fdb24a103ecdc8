"""fairseq's tasks as ours: each has a twin, its name + `_ext`."""
