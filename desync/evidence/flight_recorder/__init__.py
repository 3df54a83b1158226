"""Dumps of torch's flight recorder: pickles and JSON of layout 2.x, of NCCL, gloo, XCCL and whatever else records.

``restricted`` reads bytes without running anything that they ask for; ``columns`` turns one dump into columns; both work in a
process of their own (``worker``), which ``pool`` drives; ``merge`` puts the dumps of all ranks together.
"""
