"""The transformer backend. A step uses these files in this order:

| file | content |
| --- | --- |
| decoder.py | `TransformerBackend.step`: layer by layer, in compiled code, or by CUDA graphs |
| layers.py | the layers as tensor operations, the definition of all other implementations |
| lines.py | targets of any lengths in one compiled call, for forced decoding |
| cuda_graph.py | recorded CUDA graphs |
| rows.py | which positions of the KV cache each row sees |
| cache.py | the KV cache: slots, positions, tensors |
| weights.py | the weights, read from the model once; linear maps, norms, attention |
| supported.py | which models have such weights |
| encoder.py | the encoder |

This folder imports core, kernels and the files of model.
"""
