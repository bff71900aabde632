"""Count the lines that a trained vocabulary's tokenizer.json encodes unlike SentencePiece itself.

A character that the text lacks is among them: both spell it in bytes.
"""

import pathlib
import sys

import sentencepiece
from tokenizers import Tokenizer

folder, text = sys.argv[1:]
fast = Tokenizer.from_file(f"{folder}/tokenizer.json")
own = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/spiece.model")
with pathlib.Path(text).open(encoding="utf-8") as file:
    lines = [*file.read().splitlines(), "生僻的𪚥字", "ＦＵＬＬ  width, and  blanks"]
assert own.unk_id() not in own.encode(lines[-2])
differ = sum(fast.encode(line, add_special_tokens=False).ids != own.encode(line) for line in lines)
print(f"{differ} lines differ; {fast.token_to_id('<extra_id_0>')}")
