"""Pictures of parallel decoding: `--ddg-dir` saves graphs, `python -m fairseq_ext.viz.ddg`
(ddg.py) draws them."""
