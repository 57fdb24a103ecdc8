"""The reference backend: fairseq's own modules."""
