"""Flags of fairseq-generate that have nothing to work on: arguments, and a part of the sentence
(test_wrong_commands.py)."""

SHAPES = {
    "--constraint-case": ["--constraint-case", "any"],
    "--constraint-boundary": ["--constraint-boundary", "word"],
    "--constraint-end": ["--constraint-end"],
    "--dba-allocation": ["--dba-allocation", "paper"],
    "--avoid-case": ["--avoid-case", "exact"],
}  # what applies to phrases, as typed
NEXT_TO = (
    ["--beam", 1, "--decoding", "window"],
    ["--beam", 1, "--decoding", "jacobi"],
    ["--stop", "optimal"],
    ["--schedule", "stream"],
    ["--softmax", "top"],
)
NONE = "applies to phrases, and the command has none: add"
PHRASES = ["--constraints-file", "{phrases}"]
REFERENCE = "--score-reference scores given translations, so"
FLAGS: dict[str, tuple[list, str]] = {
    # without phrases: alone, with a search for phrases, next to a search that takes none
    **{f"{flag} of no phrases": (typed, f"{flag} {NONE}") for flag, typed in SHAPES.items()},
    **{
        f"{flag} and dba of no phrases": (["--select", "dba", *typed], f"{flag} {NONE}")
        for flag, typed in SHAPES.items()
    },
    **{
        f"{flag} beside {search[-1]}": ([*search, *typed], f"{flag} {NONE}")
        for (flag, typed), search in zip(SHAPES.items(), NEXT_TO, strict=True)
    },
    "bonus of no phrases": (
        ["--constraint-bonus", 1],
        f"--constraint-bonus {NONE} --constraints-file or --glossary, or leave",
    ),
    "bonus and window": ([*NEXT_TO[0], "--constraint-bonus", 1], f"--constraint-bonus {NONE}"),
    "soft search of no phrases": (
        ["--select", "bonus", "--constraint-bonus", 1],
        f"--constraint-bonus {NONE}",
    ),
    # without those that they shape
    **{
        f"{typed[0]} of banned phrases": (
            ["--avoid-file", "{banned}", *typed],
            f"{typed[0]} applies to required phrases, and the command has none",
        )
        for typed in (
            SHAPES["--constraint-case"],
            SHAPES["--dba-allocation"],
            ["--constraint-bonus", 1],
        )
    },
    "case of a glossary's bans": (
        ["--glossary", "{glossary}", "--avoid-case", "exact"],
        (
            "--avoid-case applies to banned phrases, and the command has none: add --avoid-file, "
            "or leave --avoid-case out"
        ),
    ),
    "case of no ban": (
        [*PHRASES, "--avoid-case", "exact"],
        "--avoid-case applies to banned phrases, and the command has none",
    ),
    "report of no glossary": (
        [*PHRASES, "--glossary-report", "r"],
        "--glossary-report needs a glossary: add --glossary",
    ),
    "documents of no glossary": (
        [*PHRASES, "--glossary-documents", "blank"],
        "--glossary-documents needs a glossary: add --glossary",
    ),
    "match of no glossary": (
        [*PHRASES, "--glossary-match", "lemma"],
        "--glossary-match needs a glossary",
    ),
    "repeat of no glossary": (
        [*PHRASES, "--glossary-repeat", "each"],
        "--glossary-repeat needs a glossary",
    ),
    # phrases and what takes none
    "phrases and window": (
        [*NEXT_TO[0], *PHRASES],
        "--constraints-file belongs to beam search, and --decoding window has no beam",
    ),
    "bonus and proof": (
        [*PHRASES, "--constraint-bonus", 1, "--stop", "optimal"],
        "--constraint-bonus can make a token's score positive, so --stop optimal proves nothing",
    ),
    "bonus and banks": (
        [*PHRASES, "--constraint-bonus", 1, "--select", "gbs"],
        "--select gbs forces them: leave one of the two out",
    ),
    "bonus nan": (
        [*PHRASES, "--constraint-bonus", "nan"],
        "--constraint-bonus (bonus in nats) must be 0 to 1000, not nan",
    ),
    "bonus below 0": (
        [*PHRASES, "--constraint-bonus=-1"],
        "--constraint-bonus (bonus in nats) must be 0 to 1000, not -1.0",
    ),
    "allocation of another search": (
        [*PHRASES, "--select", "gbs", *SHAPES["--dba-allocation"]],
        "--dba-allocation belongs to --select dba",
    ),
    "width beyond all": (
        ["--schedule", "stream", "--stream-width", 10**9],
        "(number of sentences) must be 1 to 10000000",
    ),
    # what searches nothing takes no flag of a search
    **{
        f"{flag} and references": (
            ["--score-reference", flag, *value],
            f"{REFERENCE} {flag} has nothing to do: leave one of the two out",
        )
        for flag, *value in (
            ("--int8",),
            ("--cpu-workers", 2),
            ("--lsh-k", 8),
            ("--constraint-case", "any"),
            ("--patience", 2),
            ("--decoder-backend", "fairseq"),
            ("--strict",),
            ("--length-reward", "nan"),
            ("--resume",),
        )
    },
}
