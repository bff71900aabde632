"""Write the bench's text as rows of tokens: `<data>/tokens.npy`, [rows, context + 1].

python3 prepare.py --data FOLDER --vocabulary N --context N --rows N
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import synthetic


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder to write")
    for name in ("vocabulary", "context", "rows"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    rows = synthetic.documents(options.vocabulary, options.rows, options.context + 1)
    np.save(options.data / "tokens.npy", rows)
    print(f"{rows.size} tokens, {options.vocabulary} words")


if __name__ == "__main__":
    main()
