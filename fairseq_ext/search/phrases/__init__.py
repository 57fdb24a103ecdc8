"""Phrases of the target text as tokens.

| file | what is in it |
| --- | --- |
| sentence.py | the required and banned phrases of one sentence; which a hypothesis meets |
| pieces.py | the text of tokens, and the word boundaries between them |
| segmenter.py | text to target tokens, and back |
| token_automaton.py | automata in flat arrays, and several as one table; allowed outputs |
| automaton.py | the same for phrases in any segmentation |
| phrase_table.py | the required phrases of many sentences as tensors |
| places.py | where tokens and phrases stand in a text |
| letter_case.py | the letter case of a term in its sentence |
| forms.py | inflected forms of terms |
| agreement.py, german_nouns.py | the words that agree with a German noun; its cases |
| function_words.py | words that no term displaces |
| sentence_ends.py | the tokens that end a sentence (`--constraint-end`) |

This folder imports only core.
"""
