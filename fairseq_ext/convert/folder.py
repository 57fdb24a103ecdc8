"""The folder of a converted model, which fairseq's commands read: checkpoint, dictionaries,
segmentation, and a README with the command."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fairseq_ext.convert.source import HuggingFaceFolder
from fairseq_ext.convert.transformer import Transformer, Vocabulary

README = """# {name}, converted from Hugging Face's format

{counts}. With fairseq and fairseq_ext installed, from this folder:

```bash
echo "{example}A sentence." | fairseq-interactive . --task {task} --path checkpoint.pt \\
  {flags}
```

From Python:
`fairseq_ext.Translator.from_folder("."{languages}).translate(["{example}A sentence."])`.
{codes}"""


@dataclass
class Folder:
    """The content of the folder.

    settings: of the task; segmentation: flags, whose files are in `texts`; pair: the two
    languages, or an example of two, as flags of the command.
    """

    model: Transformer
    task: str
    settings: dict[str, Any]
    segmentation: dict[str, str]
    dictionaries: dict[str, Vocabulary]
    pair: dict[str, str]
    flags: dict[str, Any] = field(default_factory=dict)  # the task's flags in the command
    texts: dict[str, str | bytes] = field(default_factory=dict)  # content by the file's name
    # target languages that a sentence may name, as >>fra<<
    targets: list[str] = field(default_factory=list)

    def write(self, source: HuggingFaceFolder, out: str) -> list[str]:
        """Write all files into a new or empty folder; return their names."""
        os.makedirs(out, exist_ok=True)
        texts = (
            self.texts
            | {name: words.text() for name, words in self.dictionaries.items()}
            | {"README.md": self.readme(source)}
        )
        for name, text in texts.items():
            Path(out, name).write_bytes(text if isinstance(text, bytes) else text.encode())
        arguments = Namespace(
            **{"task": self.task, **self.settings, **self.segmentation, **self.model.settings}
        )
        state = dict(
            args=arguments,
            model=self.model.weights,
            extra_state={"epoch": 1, "train_iterator": {"epoch": 1}},
            last_optimizer_state=None,
            optimizer_history=[
                dict(
                    criterion_name="CrossEntropyCriterion",
                    optimizer_name="Adam",
                    lr_scheduler_state={},
                    num_updates=0,
                )
            ],
        )
        torch.save(state, Path(out, "checkpoint.pt"))
        return sorted(os.listdir(out))

    def readme(self, source: HuggingFaceFolder) -> str:
        """Return the text of README.md: the command to type."""
        given = self.pair | self.segmentation | self.flags
        flags = " ".join(
            f"--{name.replace('_', '-')}" + (f" {value}" if value is not True else "")
            for name, value in given.items()
        )
        words = sorted({len(own.words) for own in self.dictionaries.values()})
        first = f">>{self.targets[0]}<< " if self.targets else ""
        codes = ""
        if "languages.txt" in self.texts:
            codes = (
                "\n"
                "languages.txt lists the codes that `--source-lang` and `--target-lang` may name.\n"
            )
        elif first:
            codes = (
                "\n"
                f"`--target-lang` may name one of {', '.join(self.targets)}; lines then "
                "need no `>>xx<<`.\n"
            )
        counts = (
            f"{self.model.settings['arch']}, {' and '.join(f'{count:,}' for count in words)} words"
        )
        return README.format(
            name=source.name,
            counts=counts,
            example=first,
            task=f"{self.task}_ext",
            flags=flags,
            codes=codes,
            languages=""
            if self.task == "translation"
            else "".join(f', {name}="{code}"' for name, code in self.pair.items()),
        )
