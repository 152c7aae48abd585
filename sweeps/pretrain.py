"""Pre-train the base models (Table 4).

python sweeps/pretrain.py --preset smoke
"""

from sweeps.engine.cli import main

if __name__ == "__main__":
    main("pretrain", __doc__)
