"""From what a user names (a folder, a checkpoint, flags) to fairseq's settings and models.

| file | what is in it |
| --- | --- |
| model.py | a model folder, and the model with its task, tokenizer and segmentation |
| checkpoint.py | checks of a checkpoint; plain Transformers under other names |
| settings.py | settings of commands and checkpoints, keywords as flags, length limits |
| data_folder.py | the dictionaries and the segmentation of a data folder; the target |
| | dictionary of our tasks |
| languages.py | the source and the target language |
"""
