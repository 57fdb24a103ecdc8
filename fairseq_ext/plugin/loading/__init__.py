"""From what a user names (a folder, a checkpoint, flags) to what fairseq takes: files, languages, segmentation, architecture."""
