"""The engine: data that flows through a decoding step (beam.py), its plug points (protocols.py), the rules every search obeys
(logits_processors.py) and the one loop (loop.py). No paper lives here, and nothing here imports a strategy."""
