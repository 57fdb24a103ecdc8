"""Models of other libraries as folders that fairseq and this package read: `python -m fairseq_ext.convert hf MODEL_DIR OUT_DIR`."""
