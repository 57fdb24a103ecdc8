"""What holds sentences while they are searched: one protocol (protocol.py), and what keeps it."""
