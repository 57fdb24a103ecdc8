"""Pictures of how parallel decoding found a translation: `--ddg-dir` (writer.py) and `python -m fairseq_ext.viz.ddg`."""
