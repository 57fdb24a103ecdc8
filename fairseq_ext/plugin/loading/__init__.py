"""From what a user names (a folder, a checkpoint, flags) to what fairseq takes.

| file | what is in it |
| --- | --- |
| model.py | a model folder, and the model with its task, tokenizer and segmentation |
| checkpoint.py | what a checkpoint must hold; plain Transformers of other names |
| settings.py | settings of commands and checkpoints, keywords as flags, length limits |
| data_folder.py | what a data folder tells: dictionaries, segmentation |
| languages.py | the source and the target language |
"""
