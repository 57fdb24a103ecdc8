"""What fairseq lacks of models that were trained elsewhere: architectures and segmentations, registered with it."""
