"""Choose the text to train on and number its characters: text.txt, vocab.json.

Runs once, before any rank starts. The first launch makes Megatron's own files, since it imports
Megatron anyway: here the import alone would take longer than all other work.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vocabulary import CharacterTokenizer

LINES = 200
"""Lines of each language: so few that 40 updates learn them."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="folder of zh.txt and en.txt")
    parser.add_argument("--data", type=Path, required=True, help="folder to write; made if missing")
    options = parser.parse_args()

    lines = []
    for name in ("zh.txt", "en.txt"):
        found = (options.text / name).read_text(encoding="utf-8").splitlines()
        lines += [line for line in found if line.strip()][:LINES]
    options.data.mkdir(parents=True, exist_ok=True)
    tokenizer = CharacterTokenizer.from_lines(lines)
    tokenizer.save(options.data)
    (options.data / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    print(f"{len(lines)} documents, {tokenizer.vocab_size} tokens")


if __name__ == "__main__":
    main()
