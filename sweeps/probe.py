"""Look inside at meta tokens (Figures 2 and 3 left).

python sweeps/probe.py --preset smoke
"""

from sweeps.engine.cli import main

if __name__ == "__main__":
    main("probe", __doc__)
