"""Parallel decoding (--decoding other than beam): greedy decoding whose decoder reads a block of tokens a call.

driver.py holds the loop, one_sentence.py the same loop in compiled code for a sentence alone, block_reader.py one decoder call. The
methods of --decoding are in strategies/decoding/, the drafts of --draft in drafts/.
"""
