"""Measure speed with and without meta tokens (Table 3).

python sweeps/efficiency.py --preset smoke
"""

from sweeps.engine.cli import main

if __name__ == "__main__":
    main("efficiency", __doc__)
