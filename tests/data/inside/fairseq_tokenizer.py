"""fairseq's own preprocessing with `--bpe hf`: `fairseq_tokenizer.py MATERIAL OUT`; says JSON."""

import contextlib
import filecmp
import io
import json
import pathlib
import sys
from argparse import Namespace

import sentencepiece
from fairseq.data import Dictionary, data_utils, encoders
from fairseq_cli.preprocess import cli_main

material, out = map(pathlib.Path, sys.argv[1:])
lines = (material / "text.txt").read_text("utf-8").split("\n")[:-1]


def preprocess(where, *more):
    sys.argv = ["fairseq-preprocess", "--only-source", "--trainpref", str(material / "text.txt"),
                "--destdir", str(out / where), "--bpe", "hf", *more]  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        cli_main()
    return out / where


def error(*more):
    try:
        preprocess("refused", *more)
    except ValueError as found:
        return str(found)
    return "none"


said = {}
for name in ("bpe", "unigram", "mt5"):
    tokenizer = str(material / name)
    one = preprocess(name, "--hf-tokenizer", tokenizer)
    found = data_utils.load_indexed_dataset(str(one / "train"))
    words = Dictionary.load(str(one / "dict.txt"))
    bpe = encoders.build_bpe(Namespace(bpe="hf", hf_tokenizer=tokenizer))
    back = [bpe.decode(words.string(found[n])) for n in range(len(found))]
    said[name] = {
        "lines": len(found),
        "unknown": sum(int((found[n] == words.unk()).sum()) for n in range(len(found))),
        "differ": [(line, other) for line, other in zip(lines, back, strict=True) if line != other][
            :3
        ],
        "encoded": bpe.encode(lines[0]) == words.string(found[0]),
        "shifted": all(words.index(word) == int(word) + 4 for word in bpe.encode(lines[0]).split()),
    }
    if name != "mt5":
        three = preprocess(f"{name}-3", "--hf-tokenizer", tokenizer, "--workers", "3")
        said[name]["same"] = filecmp.cmpfiles(one, three, ["train.bin", "train.idx", "dict.txt"])[0]
# A line with a character that the model lacks, but not its bytes; SentencePiece's own numbers, too.
rare, model = material / "rare.txt", material / "bytes" / "spiece.model"
one = preprocess("bytes", "--hf-tokenizer", str(model.parent), "--trainpref", str(rare))
own = sentencepiece.SentencePieceProcessor(model_file=str(model))
said["bytes"] = {
    "preprocessed": data_utils.load_indexed_dataset(str(one / "train"))[0].tolist(),
    "own": own.encode(rare.read_text("utf-8").rstrip()),
    "pieces": own.encode(rare.read_text("utf-8").rstrip(), out_type=str),
}
said["errors"] = [
    error("--hf-tokenizer", "/nowhere"),
    error(),
    error("--hf-tokenizer", str(material)),
    error("--hf-tokenizer", str(material / "bpe"), "--srcdict", str(out / "unigram" / "dict.txt")),
]
print(json.dumps(said))
