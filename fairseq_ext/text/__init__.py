"""Text as people have it, through a model of single sentences.

| file | what is in it |
| --- | --- |
| segments.py | a text as sentences, and a sentence as pieces that fit the model |
| splitter.py | where sentences end |
| placeholders.py | what stays as it is: URLs, {name}, %s |
| marks.py | tags and placeholders put back into a translation |
| alignment.py | which word has become which |
| in_lines.py | a text through `Translator.translate` |
| in_engine.py, joined.py | a text through an engine, and its answer |
| markup.py | HTML and XML |
| files.py | files by their endings |
| __main__.py | the command |
"""
