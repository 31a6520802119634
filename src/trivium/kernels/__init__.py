"""The operations a model is made of. One file per op: its torch reference, cases to try it on, and how near a provider
must come. `ops.select_ops` picks who runs each."""

from trivium.kernels.torch_tiles import keep_torch_from_hidden_tiles

keep_torch_from_hidden_tiles()  # before any op's reference multiplies
