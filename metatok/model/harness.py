"""lm-evaluation-harness on exported models: its own command line, with our model type known to transformers.

    python -m metatok.model.harness --model hf --model_args pretrained=FOLDER,backend=causal --tasks TASK

FOLDER is what metatok.model.hf wrote; all options are lm-eval's. --include_path names a folder with tasks of
one's own.
"""

from __future__ import annotations

import importlib
import importlib.util
import runpy
import sys


def main() -> None:
    """Runs lm-eval. Exits 2 with one line where a package is not installed."""
    for package in ("transformers", "accelerate", "lm_eval"):
        if importlib.util.find_spec(package) is None:
            print(f"error: {package} is not installed; pip install 'metatok[hf]'", file=sys.stderr)
            sys.exit(2)
    importlib.import_module("metatok.model.hf")  # which registers the model type
    runpy.run_module("lm_eval", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
