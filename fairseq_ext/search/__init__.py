"""The engine: data that flows through a decoding step (beam.py), its plug points (plugs.py), the rules every search obeys
(rules.py) and the one loop (loop.py). No paper lives here, and nothing here imports a strategy."""
