"""Text as people have it, through a model of single sentences.

| file | what is in it |
| --- | --- |
| atoms.py | the parts of a text: tags, placeholders, words; sentences made of them |
| reading.py | what the readers of all formats share: texts as atoms, what is between them, and |
| | what stays as it is: URLs, {name}, %s |
| segments.py | the one cutter behind them: sentences, and pieces that fit the model |
| splitter.py | where sentences end; whether a text holds several |
| units.py | words of a sentence; which words of its translation stand for which |
| marks.py | tags and placeholders put back into a translation |
| alignment.py | which word has become which |
| in_lines.py | a text through `Translator.translate` |
| formats.py | the formats by name; srt and vtt; paragraphs of docx, pptx and odt as segments |
| markup.py | HTML: its tokens, and text of them |
| xml_tokens.py | XML |
| markdown.py, markdown_inline.py | Markdown: its blocks, and what is inline |
| messages.py | localisation files: po, XLIFF |
| office.py | paragraphs of docx, pptx and odt as text |
| stopping.py | stops the reading of a text after its deadline, or when its client has left |
| files.py | files by their endings: their encoding; the parts of docx, pptx, odt and epub |
| __main__.py | the command |
"""

MAX_UNPACKED = 64 << 20  # bytes to which the text of an archive may unpack
