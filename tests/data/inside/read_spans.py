"""Read samples of mT5 as the template does; print the largest token, lengths, last sentinels."""

import argparse
import pathlib
import sys

import numpy
import pretrain

folder = pathlib.Path(sys.argv[1])
options = argparse.Namespace(model="mt5", sequence=32, corpus=folder, batch=1, eval_every=0)
samples, _ = pretrain.build_samples(options, 250_112, 1)
tokens = numpy.load(folder / "train.npy").reshape(-1)
for number in range(len(samples)):
    sample = {name: part.tolist() for name, part in samples[number].items()}
    text = tokens[number * 34 : number * 34 + 34].tolist()
    restored = pretrain.spans.restore(sample["input_ids"], sample["labels"], samples.marks)
    assert restored == text, (restored, text)
first = samples[0]["input_ids"].tolist()
samples.epoch = 1
assert samples[0]["input_ids"].tolist() != first, "another epoch hides the same"
samples.epoch = 0
assert samples[0]["input_ids"].tolist() == first
marks = [n for n in sample["input_ids"] if n >= 250_000]
print(tokens.max(), len(sample["input_ids"]), len(sample["labels"]), marks)
