"""Triton kernels and the functions that launch them: tensors in, tensors out, no state. `kernels.cuda` picks among them."""
