"""Changes of other packages (patches.py), and when they are made (startup.py).

| file | what is in it |
| --- | --- |
| fairseq_ext.pth, | what is installed next to the package: a finder that runs startup.py when |
| fairseq_ext_start.py | fairseq is first imported |
| startup.py | the import hook that makes the changes, and the start of our commands |
| patches.py | the list of changes, and the repairs of fairseq |
| checkpoints.py | checkpoints and their settings run no code |
| configuration.py | fairseq's configuration, without hydra's parser |
| named_tasks.py | the task that a command names, and its --user-dir |
| uncompiled.py | its three compiled modules in Python |
"""
