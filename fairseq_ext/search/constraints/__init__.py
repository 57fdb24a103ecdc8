"""Required and banned phrases: flags, files, segmentation, automata, and the report."""
