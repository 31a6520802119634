"""The shared words. Frozen structs, no behaviour beyond arithmetic on their own fields, no imports from above."""
