"""Fine-tune and score: tasks x models x train lengths (Tables 1, 7-10, Figure 1).

python sweeps/finetune.py --preset smoke
"""

from sweeps.engine.cli import main

if __name__ == "__main__":
    main("finetune", __doc__)
