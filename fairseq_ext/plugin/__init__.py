"""The layer that knows fairseq, and that fairseq's commands enter. It imports core, kernels, model
and search.

| file | what is in it |
| --- | --- |
| tasks.py, stock.py | the *_ext tasks; tasks and segmentations that stock fairseq lacks |
| flags_dataclass.py, flag_help.py | all flags as one dataclass, with their help |
| options.py | all settings of a run, read once; the signature |
| input.py, sentences.py, bad_sentences.py | lines and batches; a sentence's constraints; |
| | sentences that fail |
| run.py, results.py | one run: its statistics, its files |
| workers.py | `--cpu-workers`; the lock of a Translator's calls, in forked processes too |
| generator.py, search_setup.py | fairseq's generator outside, our search inside; its |
| | strategies; `--print-alignment` |
| pools.py | batches as pools |
| calls.py | what Translator and Engine call |
| loading/, compat/ | from what a user names to fairseq's settings; changes of other |
| | packages |
"""
