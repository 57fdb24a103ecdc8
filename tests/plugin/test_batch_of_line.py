"""A line alone is batched without fairseq's iterator: the batch is the same, and where the
iterator does more, it runs."""

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from models import build, task

import fairseq_ext  # noqa: F401
from fairseq_ext.plugin.input import SingleBatchIterator


def batches(lines: list[torch.Tensor], **more):
    """An *_ext task's batches of these lines, as fairseq-interactive requests them; and stock's."""
    both = []
    for name in ("translation_ext", "translation"):
        found = task(name)
        if name.endswith("_ext"):
            found.build_generator(
                [build("transformer")], generation(more.pop("match_source_len", False))
            )
        dataset = found.build_dataset_for_inference(list(lines), [len(line) for line in lines])
        both.append(
            found.get_batch_iterator(
                dataset=dataset, max_sentences=1, ignore_invalid_inputs=False, **more
            )
        )
    return both


def generation(source_length: bool) -> GenerationConfig:
    return GenerationConfig(beam=2, nbest=2, match_source_len=source_length)


def line(n: int) -> torch.Tensor:
    return torch.cat([torch.arange(5, 5 + n), torch.tensor([2])])


def flat(value):
    if isinstance(value, dict):
        return {name: flat(part) for name, part in value.items()}
    return value.tolist() if torch.is_tensor(value) else value


@pytest.mark.parametrize(
    "tokens",
    [line(0), line(1), line(9), torch.tensor([5, 1, 6, 2])],
    ids=["0", "1", "9", "with <pad>"],
)
def test_the_batch_is_fairseqs(tokens):
    ours, stock = batches([tokens], max_tokens=None, max_positions=(64, 64))
    assert isinstance(ours, SingleBatchIterator)
    assert [flat(batch) for batch in ours.next_epoch_itr(shuffle=False)] == [
        flat(batch) for batch in stock.next_epoch_itr(shuffle=False)
    ]


def test_what_the_iterator_refuses_it_still_refuses():
    with pytest.raises(Exception, match="Size of sample #0 is invalid"):
        batches([line(9)], max_tokens=None, max_positions=(5, 64))


def test_several_lines_and_stocks_own_search_take_the_iterator():
    """fairseq's iterator draws a random number, on which what stock's searches draw
    behind it may depend."""
    assert not isinstance(
        batches([line(3), line(4)], max_tokens=None, max_positions=(64, 64))[0], SingleBatchIterator
    )
    assert not isinstance(
        batches([line(3)], max_tokens=None, max_positions=(64, 64), match_source_len=True)[0],
        SingleBatchIterator,
    )
