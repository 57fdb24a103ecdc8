"""A Transformer's layers."""
