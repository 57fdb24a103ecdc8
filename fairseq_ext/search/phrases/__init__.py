"""Phrases of the target text as tokens.

| file | what it holds |
| --- | --- |
| sentence.py | what is required and banned in one sentence, and which of it a hypothesis has |
| pieces.py | what tokens read as, and where words begin |
| segmenter.py | text to target tokens, and back |
| automaton.py | automata that recognise phrases in any segmentation |
| phrase_table.py | the required phrases of many sentences as tensors |
| places.py | where tokens and phrases stand in a text |

This folder imports only core.
"""
