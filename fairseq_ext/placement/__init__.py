"""Where a glossary term stands (`--glossary-placement`): align.py is its value `align`; `free` is the constrained search alone."""
