"""The transformer backend. A step runs downwards through these files:

| file | what it does |
| --- | --- |
| decoder.py | `TransformerBackend.step`: what model/protocol.py asks for |
| step.py | one step of a group of rows, in one of three ways: layers.py, kernels/transformer.py or cuda_graph_cache.py |
| layers.py | the layers as tensor operations, which define the other two |
| rows.py | the mask: which positions of the KV cache each row sees |
| kv_cache.py | slots and positions in use |
| key_values.py | the KV cache's tensors |
| weights.py | the weights, read from the model once; supported.py says which models have such weights |
| one_row.py | the same step for a single row, without masks |
"""
