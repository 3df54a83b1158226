"""Text logs of a job: torch, NCCL, torchelastic, gloo, the launchers and the kernel, in all wordings that are known.

``lines`` streams a file and lets through what can mean something; ``speakers`` tells who says it; ``patterns`` is the table of
what is understood; ``reader`` turns lines into facts; ``assemble`` turns the facts of all files into traces and claims.
"""
