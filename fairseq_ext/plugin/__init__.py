"""What fairseq's commands enter."""
