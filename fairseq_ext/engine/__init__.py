"""`fairseq_ext.Engine`: one model that is refilled while requests come and go (engine.py).

| file | what is in it |
| --- | --- |
| engine.py | what users call: requests and futures |
| tickets.py | requests under way |
| callbacks.py | where the functions run that users pass in |
| dispatch.py | the queue, and which worker gets what |
| worker.py | what runs in the worker processes (core/process_pool.py starts them) |
| intake.py, languages.py | requests, prepared as they come |
| decoding.py | requests through one search |
| requirements.py | a request's phrases and glossaries, and where they stand in its translation |
| jobs.py | requests and answers as they travel |
| text.py, in_engine.py, joined.py | a text as many requests, and its answer |
"""
