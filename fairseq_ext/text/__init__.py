"""Text as people have it, through a model of single sentences.

| file | what is in it |
| --- | --- |
| segments.py | a text as sentences, and a sentence as pieces that fit the model |
| splitter.py, several_sentences.py | where sentences end; whether a text holds several |
| language_codes.py | codes of languages |
| placeholders.py | what stays as it is: URLs, {name}, %s |
| marks.py | tags and placeholders put back into a translation |
| alignment.py | which word has become which |
| in_lines.py | a text through `Translator.translate` |
| formats.py | the formats by name |
| markup.py, markdown.py, subtitles.py, office.py | HTML and XML; Markdown; srt and vtt; |
| | docx, pptx and odt |
| files.py | files by their endings |
| __main__.py | the command |
"""
