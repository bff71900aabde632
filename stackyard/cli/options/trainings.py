"""Declare the requests of `invoke smoke`, `bench`, `prove` and `data`."""

from dataclasses import dataclass
from typing import Annotated

from stackyard.cli.option import (
    HOSTS,
    CpuBase,
    GpuBase,
    Image,
    Junit,
    Option,
    Site,
    Stacks,
    Verbose,
)


@dataclass(frozen=True, kw_only=True)
class SmokeRequest:
    """Ask for smokes of one stack or of all."""

    stack: Stacks = "all"
    base: GpuBase = ""
    gpus: Annotated[
        int | None, Option("GPUs of the whole run; 0 trains on CPU ranks (required)", least=0)
    ] = None
    nodes: Annotated[
        int | None, Option("containers of the run (default: 1 with GPUs, 2 on CPU ranks)", least=1)
    ] = None
    placement: Annotated[
        str,
        Option(
            "how several containers share a host's GPUs (docs/howto/gpus.md; default: the fastest)"
        ),
    ] = ""
    against: Annotated[
        str, Option("an earlier smoke.json (or a folder like reports/) to compare with", "REPORT")
    ] = ""
    hosts: Annotated[str, Option(f"train over hosts instead of on this machine: {HOSTS}")] = ""
    on: Annotated[str, Option("slurm: train as a job there (docs/howto/slurm.md)", "CLUSTER")] = ""
    site: Site = ""
    out: Annotated[
        str,
        Option(
            "with --on: the job's folder, seen by all nodes; it is removed (default: ./smoke-NAME)",
            "FOLDER",
        ),
    ] = ""
    image: Image = ""
    junit: Junit = ""
    verbose: Verbose = False


@dataclass(frozen=True, kw_only=True)
class BenchRequest:
    """Ask for benches of one stack or of all."""

    stack: Stacks = "all"
    base: GpuBase = ""
    gpus: Annotated[
        int | None,
        Option(
            "the most GPUs of one training; 0 trains a tiny size on CPU ranks (required)",
            least=0,
        ),
    ] = None
    rounds: Annotated[
        int | None, Option("how often every variant is trained (default: 2)", least=1)
    ] = None
    updates: Annotated[
        int | None, Option("optimizer updates of one training (default: the definition's)", least=1)
    ] = None
    sides: Annotated[
        str,
        Option(
            "which variants to train (docs/howto/bench.md), and what they are compared with",
            "NAME,...",
        ),
    ] = ""
    counts: Annotated[
        str, Option("on how many GPUs each is trained (default: 1,2,4 and so on, and all)", "N,...")
    ] = ""
    hosts: Annotated[
        str, Option(f"train over hosts, with as many GPUs on each, instead of here: {HOSTS}")
    ] = ""
    on: Annotated[str, Option("slurm: train as a job there (docs/howto/slurm.md)", "CLUSTER")] = ""
    nodes: Annotated[int | None, Option("with --on: nodes of the job (2)", least=1)] = None
    site: Site = ""
    out: Annotated[
        str,
        Option(
            "with --on: the job's folder, which all nodes see; it is removed (./bench-NAME)",
            "FOLDER",
        ),
    ] = ""
    example: Annotated[
        str, Option("a template of the stack instead: 200 updates, killed and resumed", "NAME")
    ] = ""
    set: Annotated[str, Option("with --example: its values", "NAME=VALUE,...")] = ""
    image: Image = ""
    verbose: Verbose = False


@dataclass(frozen=True, kw_only=True)
class ProveRequest:
    """Ask for proofs of fixes, or for the page of what is proven."""

    stack: Stacks = "all"
    fix: Annotated[str, Option("one fix or limit by its id (default: all)")] = ""
    base: Annotated[str, Option("the base of the images (cpu)")] = ""
    record: Annotated[
        bool,
        Option("keep the proofs in images/<base>.proofs.json, and write docs/reference/fixes.md"),
    ] = False
    page: Annotated[bool, Option("only write docs/reference/fixes.md out of what is recorded")] = (
        False
    )
    check: Annotated[bool, Option("with --page: compare only; fail when the page differs")] = False
    junit: Junit = ""


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """Ask for text of the caller's own, encoded as a stack reads it."""

    stack: Annotated[str, Option("fairseq, megatron or accelerate", positional=True)]
    base: CpuBase = ""
    input: Annotated[
        tuple[str, ...],
        Option(
            "text, a document a line; a pattern in quotes, or given again, for more files", "FILE"
        ),
    ] = ()
    valid: Annotated[tuple[str, ...], Option("files to validate on", "FILE")] = ()
    test: Annotated[tuple[str, ...], Option("files to test on", "FILE")] = ()
    split: Annotated[
        str, Option("or parts of the input: weights of train, valid and test, 900,50,50", "N,N,N")
    ] = ""
    out: Annotated[str, Option("the folder to make", "FOLDER")] = ""
    tokenizer: Annotated[
        str, Option("a Hugging Face tokenizer: its folder, or tokenizer.json", "PATH")
    ] = ""
    train_tokenizer: Annotated[
        int, Option("train a SentencePiece vocabulary of N tokens on the input first", "N", least=1)
    ] = 0
    vocab: Annotated[
        str, Option("vocab.json, for words between white space (fairseq: or its dict.txt)", "FILE")
    ] = ""
    merges: Annotated[str, Option("GPT-2's merges.txt, with its --vocab", "FILE")] = ""
    json_key: Annotated[
        str,
        Option("lines are JSON, the text is under this key (text, for files named .jsonl)", "KEY"),
    ] = ""
    encoding: Annotated[str, Option("the encoding of the text")] = "utf-8"
    bad_lines: Annotated[
        str, Option("what happens to lines that are not in it: fail, skip or replace", "ACTION")
    ] = "fail"
    keep_blank: Annotated[bool, Option("blank lines are documents, too")] = False
    append_eod: Annotated[bool, Option("end every document with a token (the default)")] = True
    eod: Annotated[str, Option("that token (<|endoftext|>, or the tokenizer's own)", "TOKEN")] = ""
    unk: Annotated[str, Option("the word for what is not in --vocab", "WORD")] = "<unk>"
    seq_length: Annotated[
        int,
        Option(
            "tokens of a sample: every split must hold one; accelerate's are cut (1024)", least=1
        ),
    ] = 0
    shards: Annotated[
        int, Option("fairseq: folders shard0, shard1, ... of which an epoch reads one", least=1)
    ] = 0
    workers: Annotated[int | None, Option("processes (one a core)", least=1)] = None


@dataclass(frozen=True, kw_only=True)
class ConvertRequest:
    """Ask for a checkpoint as a folder of transformers."""

    stack: Annotated[str, Option("fairseq, megatron or accelerate", positional=True)]
    base: CpuBase = ""
    checkpoint: Annotated[
        str,
        Option("the folder that a training saved to, one update's, or a file of fairseq's", "PATH"),
    ] = ""
    out: Annotated[str, Option("the folder to make", "FOLDER")] = ""
    data: Annotated[
        str, Option("what `invoke data` made and the model was trained on: its tokenizer", "FOLDER")
    ] = ""
    heads: Annotated[
        int, Option("megatron: attention heads, if the checkpoint does not say", least=1)
    ] = 0
    config: Annotated[
        str,
        Option("accelerate: config.json (default: ../model/config.json, if it is there)", "FILE"),
    ] = ""
