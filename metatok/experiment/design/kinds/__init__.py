"""The kinds of cells, one file each: what it describes, what it costs and reads, and how it is done.

A new kind is a new file with a subclass of Cell; nothing else lists them. What a kind needs of torch comes
from the science packages when it runs, so that describing and planning stay light.
"""
