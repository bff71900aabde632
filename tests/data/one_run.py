"""One preparation as a command of its own, to be killed: `one_run.py IMAGE TEXT TOKENIZER OUT`."""

import sys
from pathlib import Path

from stackyard.cli import command as cli
from stackyard.data import dataset, encoding
from stackyard.system.engine import Engine


def main():
    image, text, tokenizer, out = sys.argv[1:]

    def prepare(terminal):
        request = dataset.Request(
            stack="megatron",
            inputs={"train": [text]},
            vocabulary=encoding.find_vocabulary(tokenizer, "", "", "megatron"),
            places={text: f"{dataset.INPUTS}/0"},
        )
        with Engine() as engine:
            say = terminal.note
            done = encoding.prepare(engine, image, request, Path(out), 1, say, say, chunk=400_000)
        return {"kept": done["kept"], "shards": done["shards"]}, 0

    return cli.run(prepare, as_json=True)


if __name__ == "__main__":
    sys.exit(main())
