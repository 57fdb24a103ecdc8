"""Where draft tokens come from. Drafts change how many calls a translation takes, never the translation.

| flag | file |
| --- | --- |
| --draft ngram, --draft-table | ngram.py; its table: table.py, made by scripts/build_drafts.py |
| --draft pad, repeat, none | drafter.py |
| --draft-file | previous.py |
| --draft auto | factory.py, which makes all of them |
"""
