"""Which tokens are held where: the pool of blocks, the prefix tree, block tables, the ledger. Pure: integers only."""
