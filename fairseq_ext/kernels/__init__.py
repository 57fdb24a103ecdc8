"""Kernels as twins: `lsh_torch.py` defines each function and is the CPU path; `lsh_cuda.py` runs the same ones from `lsh.cu`."""
