"""One folder an extension point, one file a value of its flag: `--softmax lsh` is softmax/lsh.py. A paper's own part of the search is here.

Each file registers itself (fairseq_ext/search/registry.py); the loop does not know them. A name with a leading underscore is code that the files
of its folder share. What several extension points share lies outside: search/, softmax/, parallel/, constraints/.
"""
