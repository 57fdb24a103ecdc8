"""Source text with which a command times its own parts; the scripts that start such a command
put it in front of theirs."""

TIMED_PARTS = """
import contextlib
parts = {}  # seconds of each, less those of parts inside it

@contextlib.contextmanager
def timed(part):
    before, inside = used(), sum(parts.values())
    try:
        yield
    finally:
        parts[part] = parts.get(part, 0.0) + used() - before - (sum(parts.values()) - inside)

def wrap(owner, name, part):
    inner = getattr(owner, name)
    def outer(*arguments, **named):
        with timed(part):
            return inner(*arguments, **named)
    setattr(owner, name, outer)
"""
