"""Flags, draft files and counts for the tests of parallel decoding."""

from models import dictionary

METHODS = ["jacobi", "gs-jacobi", "hybrid-jacobi", "window"]
LENGTHS = [7, 5, 3, 1, 0, 12]
EOS, PAD = dictionary().eos(), dictionary().pad()


def blocks(method, **flags):
    """Flags of a method that tries its drafts whether they have been any good or not."""
    return (
        {"decoding": method, "draft": "repeat"}
        | ({"draft_cost": 0.0} if method == "window" else {})
        | flags
    )


def drafts(tmp_path, lines):
    """A --draft-file of token ids, EOS left out."""
    file = tmp_path / "drafts.txt"
    file.write_text("".join(" ".join(dictionary()[t] for t in line) + "\n" for line in lines))
    return str(file)


def counts(generator):
    return generator.stats.as_dict()["parallel"]
