"""Models of other libraries for fairseq and this package: `python -m fairseq_ext.convert
hf MODEL_DIR OUT_DIR`.

| file | what is in it |
| --- | --- |
| __main__.py | the command |
| source.py | a model folder in Hugging Face's format, read without running its code |
| transformer.py | weights, settings and dictionary in fairseq's terms; the output folder |
| families.py | BART, mBART, M2M-100, NLLB-200; Marian and OPUS-MT; FAIR's systems of WMT19 |
"""
