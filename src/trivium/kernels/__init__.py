"""The operations a model is made of. One file per op: its torch reference, cases to try it on, and how near a provider
must come. `ops.select_ops` picks who runs each."""
