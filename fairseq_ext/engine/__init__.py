"""`fairseq_ext.Engine`: one model that is refilled while requests come and go (engine.py).

| file | what is in it |
| --- | --- |
| engine.py | what users call: requests and futures |
| loop.py | the I/O thread, which owns queue, workers and pipes (core/worker_pool.py) |
| tickets.py | requests, messages of workers, a full queue, the rate of answers |
| callbacks.py | where the functions run that users pass in |
| fork_server.py, worker.py | the processes: the one that loads the model, and those it forks |
| decoding.py | requests through one search, each in its languages |
| requirements.py | a request's phrases and glossaries, and where they stand in its translation |
| text.py | a text as many requests, and its answer |
"""
