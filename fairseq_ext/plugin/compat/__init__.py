"""Changes of other packages (patches.py), and when they are made (startup.py).

| file | what is in it |
| --- | --- |
| startup.py, fairseq_ext.pth | the import hook that makes the changes, and the |
| | file that installs it |
| patches.py | the list of changes |
| checkpoints.py | checkpoints and their settings run no code |
| repairs.py, uncompiled.py | repairs of fairseq; its three compiled modules in Python |
| fast_start.py, lazy.py | a quick start of commands |
| tiny_decode.py | the doctor's last check |
"""
