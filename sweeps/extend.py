"""Extend the RoPE model's context by YaRN (Table 5).

python sweeps/extend.py --preset smoke
"""

from sweeps.engine.cli import main

if __name__ == "__main__":
    main("extend", __doc__)
