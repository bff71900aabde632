"""Use a tokenizer of Hugging Face as fairseq's `--bpe hf --hf-tokenizer FOLDER`.

Owns the registered encoder, which fairseq finds because it lies in this folder, and what
`fairseq-preprocess` needs of it: an option, the dictionary, and a tokenizer of lines. A token is
written as its number in the tokenizer, as fairseq's own byte-level BPE writes it, so a word of
dict.txt holds no blank, none is missing, and no special token of either side is taken for the
other's. fairseq puts four tokens of its own in front: its number is the tokenizer's and 4 more.
"""

import os
from dataclasses import dataclass, field

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass

NAME = "hf"


@dataclass
class HuggingFaceConfig(FairseqDataclass):
    """Hold the options of `--bpe hf`."""

    hf_tokenizer: str = field(
        default="",
        metadata={"help": "folder or tokenizer.json of a Hugging Face tokenizer, or a hub's name"},
    )


class _Saved:
    """Read a tokenizer.json, unchanged."""

    def __init__(self, path):
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(path)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def token(self, number):
        return self._tokenizer.id_to_token(number) or ""


class _Loaded:
    """Read with transformers what nothing else can: spiece.model, a name on the hub."""

    def __init__(self, name):
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(name)
        self.size = max(self._tokenizer.get_vocab().values()) + 1

    def encode(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False, truncation=False)

    def decode(self, ids):
        return self._tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def token(self, number):
        return self._tokenizer.convert_ids_to_tokens(number)


def load(name):
    """Load the tokenizer of a folder, of a tokenizer.json, or of that name on the hub.

    Raises:
        ValueError: there is none, or it cannot be read; says which and what to do.
    """
    if not name:
        raise ValueError("--bpe hf needs --hf-tokenizer: a folder, a tokenizer.json, or a name")
    file = os.path.join(name, "tokenizer.json") if os.path.isdir(name) else name
    is_path = os.path.exists(name) or name.startswith(("/", ".", "~")) or name.count("/") > 1
    if is_path and not os.path.exists(name):
        raise ValueError(f"--hf-tokenizer {name}: there is no such folder or file")
    try:
        return _Saved(file) if os.path.isfile(file) else _Loaded(name)
    except Exception as error:
        if is_path:
            why = f"holds no tokenizer that can be read ({_first_line(error)})"
        else:
            why = (
                "is no folder here, and the hub did not give it: without a network, "
                f"`hf download {name} --local-dir FOLDER` where there is one, then --hf-tokenizer"
                f" FOLDER ({_first_line(error)})"
            )
        raise ValueError(f"--hf-tokenizer {name}: {why}") from error


def _first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@register_bpe(NAME, dataclass=HuggingFaceConfig)
class HuggingFaceTokenizer:
    """Turn text into numbers and back, for fairseq-interactive, fairseq-generate and tasks."""

    def __init__(self, cfg):
        self._tokenizer = load(cfg.hf_tokenizer)

    def encode(self, x: str) -> str:
        return " ".join(map(str, self._tokenizer.encode(x)))

    def decode(self, x: str) -> str:
        # fairseq's own <unk> and padding are in no vocabulary of the tokenizer.
        ids = [int(word) for word in x.split() if word.isdecimal()]
        return self._tokenizer.decode([number for number in ids if number < self._tokenizer.size])

    def is_beginning_of_word(self, x: str) -> bool:
        if not x.isdecimal():
            return True
        token = self._tokenizer.token(int(x))
        return token.startswith((" ", "\u2581", "\u0120"))


class LineTokenizer:
    """Return a line's tokens as words of the dictionary; each worker loads the tokenizer itself."""

    def __init__(self, name):
        self._name, self._tokenizer = name, None

    def __getstate__(self):
        return {"_name": self._name, "_tokenizer": None}

    def __call__(self, line):
        if self._tokenizer is None:
            self._tokenizer = load(self._name)
        return [str(number) for number in self._tokenizer.encode(line.rstrip("\r\n"))]


def preprocessing_parser(parser):
    """Add --hf-tokenizer: fairseq-preprocess knows --bpe, but reads no option of the chosen one."""
    parser.add_argument(
        "--hf-tokenizer",
        default="",
        metavar="FOLDER",
        help="with --bpe hf: folder or tokenizer.json of a Hugging Face tokenizer, or a hub's name",
    )
    return parser


def chosen(args):
    """Tell whether fairseq-preprocess is to encode with `--bpe hf`."""
    return getattr(args, "bpe", None) == NAME


def dictionary(args):
    """Return every token of the tokenizer, in its order, then padding words as fairseq adds them."""
    from fairseq.data import Dictionary  # which imports the encoders itself

    found = Dictionary()
    for number in range(load(args.hf_tokenizer).size):
        found.add_symbol(str(number))
    found.pad_to_multiple_(args.padding_factor)
    return found


def encoding(args, vocab):
    """Return further arguments of VocabularyDatasetBinarizer.

    Raises:
        ValueError: the dictionary (--srcdict) was not made from this tokenizer.
    """
    if not chosen(args):
        return {}
    last = load(args.hf_tokenizer).size - 1
    first = vocab.nspecial
    ends = (vocab.index("0"), vocab.index(str(last)))
    if ends != (first, first + last) or str(last + 1) in vocab:
        raise ValueError(
            f"the dictionary was not made from {args.hf_tokenizer}: leave --srcdict out, or give"
            " the dict.txt that fairseq-preprocess wrote with this tokenizer"
        )
    return {"tokenize": LineTokenizer(args.hf_tokenizer)}
