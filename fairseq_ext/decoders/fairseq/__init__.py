"""The fairseq backend, which is the reference: fairseq's own modules."""
