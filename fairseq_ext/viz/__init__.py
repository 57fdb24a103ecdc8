"""How parallel decoding found a translation: `--ddg-dir` saves it (writer.py), `python -m fairseq_ext.viz.ddg` draws it."""
