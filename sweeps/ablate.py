"""Ablate meta tokens at inference: no pos, no embed, neither, noise (Tables 2, 11-17).

python sweeps/ablate.py --preset smoke
"""

from sweeps.engine.cli import main

if __name__ == "__main__":
    main("ablate", __doc__)
