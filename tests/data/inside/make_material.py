"""Text and tokenizers of the tests: `make_material.py FOLDER`, in fairseq's image."""

import json
import pathlib
import sys

import sentencepiece
from tokenizers import (
    BertWordPieceTokenizer,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

folder = pathlib.Path(sys.argv[1])
text = pathlib.Path("/usr/local/share/stackyard/text")
read = [(text / f"{name}.txt").read_text("utf-8").split("\n") for name in ("zh", "en")]
pairs = [[line for line in found if line.strip()][:1200] for found in read]
lines = [line for pair in zip(*pairs, strict=True) for line in pair]
(folder / "text.txt").write_text("\n".join(lines) + "\n", "utf-8")

bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = decoders.ByteLevel()
bpe.train_from_iterator(lines, trainers.BpeTrainer(
    vocab_size=500, special_tokens=["<|endoftext|>"], show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
(folder / "bpe").mkdir()
bpe.save(str(folder / "bpe" / "tokenizer.json"))

# The two other kinds of Megatron's own program: GPT-2's two files, and BERT's lower-case pieces.
(folder / "gpt2").mkdir()
bpe.model.save(str(folder / "gpt2"))
pieces = BertWordPieceTokenizer(lowercase=True)
pieces.train_from_iterator(lines, vocab_size=3000, min_frequency=1, show_progress=False)
(folder / "bert").mkdir()
pieces.save(str(folder / "bert" / "tokenizer.json"))
pieces.save_model(str(folder / "bert"))

unigram = Tokenizer(models.Unigram())
unigram.pre_tokenizer = pre_tokenizers.Metaspace()
unigram.decoder = decoders.Metaspace()
unigram.train_from_iterator(lines, trainers.UnigramTrainer(
    vocab_size=6000, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>",
    show_progress=False))  # fmt: skip
(folder / "unigram").mkdir()
unigram.save(str(folder / "unigram" / "tokenizer.json"))

# Folders as mT5's is on the hub: no tokenizer.json. Unlike mT5's own the first has no bytes.
for name in ("mt5", "bytes"):
    (folder / name).mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / name / "spiece"), vocab_size=4500,
        model_type="unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, character_coverage=1.0,
        byte_fallback=name == "bytes", hard_vocab_limit=False, minloglevel=2)  # fmt: skip
    (folder / name / "config.json").write_text('{"model_type": "mt5"}')
# A character that the text lacks, between some that it has.
(folder / "rare.txt").write_text("一字𪚥字\n", "utf-8")

# A vocabulary of mT5's size, its sentinels on top; text of its largest numbers.
wide = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"w{n}": n for n in range(3, 250_000)}}
wide |= {f"<extra_id_{99 - n}>": 250_000 + n for n in range(100)}
many = Tokenizer(models.WordLevel(wide, unk_token="<unk>"))
many.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
(folder / "wide").mkdir()
many.save(str(folder / "wide" / "tokenizer.json"))
rows = (range(first, first + 20) for first in range(60_000, 249_900, 900))
(folder / "wide.txt").write_text("".join(" ".join(f"w{n}" for n in row) + "\n" for row in rows))

words = sorted({word for line in lines[:1500] for word in line.split()})
vocabulary = {word: n for n, word in enumerate(["<unk>", "<|endoftext|>", *words])}
(folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
# The same words, others for what is unknown and for the end, where nobody would guess them; the
# usual ones are there, too, as words like any other.
own = {word: n for n, word in enumerate([*vocabulary, "[END]", "[UNK]"])}
(folder / "own.json").write_text(json.dumps(own, ensure_ascii=False), "utf-8")

# What Megatron's example reads: characters, with its own special tokens.
spelled = [" ".join("▁".join(line.split())) for line in lines]
(folder / "spelled.txt").write_text("\n".join(spelled) + "\n", "utf-8")
characters = sorted({c for line in spelled for c in line.split()})
table = {c: n for n, c in enumerate(["<eod>", "<pad>", "<unk>", *characters])}
(folder / "characters.json").write_text(json.dumps(table, ensure_ascii=False), "utf-8")
