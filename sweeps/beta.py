"""Rate-distortion curves over beta (Figure 3 right).

python sweeps/beta.py --preset smoke
"""

from sweeps.engine.cli import main

if __name__ == "__main__":
    main("beta", __doc__)
