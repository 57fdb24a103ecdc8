"""Compiled twins of what is defined elsewhere in torch: `step.cpp`, a Transformer's step on the CPU (definition: decoders/)."""
