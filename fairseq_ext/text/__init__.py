"""Text as people have it, through a model of single sentences.

| file | what is in it |
| --- | --- |
| atoms.py | the parts of a text: tags, placeholders, words; sentences made of them |
| reading.py | what the readers of all formats share: texts as atoms, and what is between them |
| segments.py | the one cutter behind them: sentences, and pieces that fit the model |
| splitter.py, several_sentences.py | where sentences end; whether a text holds several |
| placeholders.py | what stays as it is: URLs, {name}, %s |
| units.py, matched_units.py | words of a sentence; which words of its translation stand for which |
| marks.py | tags and placeholders put back into a translation |
| alignment.py | which word has become which |
| in_lines.py | a text through `Translator.translate` |
| formats.py | the formats by name; paragraphs of docx, pptx and odt as segments |
| html_tokens.py, markup.py | HTML: its tokens, and text of them |
| xml_tokens.py, xml_text.py | XML |
| markdown.py, markdown_inline.py | Markdown: its blocks, and what is inline |
| messages.py, po.py, xliff.py | texts of localisation files: po, XLIFF |
| subtitles.py | srt and vtt |
| office.py | paragraphs of docx, pptx and odt as text |
| archives.py | docx, pptx, odt and epub: which of their parts are translated |
| stopping.py | stops the reading of a text after its deadline, or when its client has left |
| encodings.py | the encoding of a file |
| files.py | files by their endings |
| __main__.py | the command |
"""

MAX_UNPACKED = 64 << 20  # bytes to which the text of an archive may unpack
