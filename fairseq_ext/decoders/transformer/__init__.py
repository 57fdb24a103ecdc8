"""The fast backend for Transformers."""
