"""CTranslate2 behind FastAPI with micro-batches: what scripts/bench/serve.py measures
`python -m fairseq_ext.serve` against.

    python scripts/bench/serve_ct2.py MODEL.pt DATA SRC TGT spm.model CONVERTED --port 8001 --beam 5
        --workers 1

Requests that wait are translated together, up to `--batch` of them, by whichever of `--workers`
threads of one core each is free.
CONVERTED: folder for the converted model, made when it is not there.
"""

import argparse
import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import ctranslate2
import sentencepiece
import uvicorn
from fastapi import FastAPI, Request


def application(
    translator: ctranslate2.Translator,
    pieces: sentencepiece.SentencePieceProcessor,
    args: argparse.Namespace,
) -> FastAPI:
    """POST /v1/translate {"source": ...} -> {"text": ...}."""
    waiting: asyncio.Queue = asyncio.Queue()
    threads = ThreadPoolExecutor(args.workers)

    def translate(lines: list[str]) -> list[str]:
        found = translator.translate_batch(
            pieces.encode(lines, out_type=str),
            beam_size=args.beam,
            length_penalty=1,
            max_input_length=0,
            max_decoding_length=200,
        )
        return [pieces.decode(result.hypotheses[0]) for result in found]

    async def work() -> None:
        """One of the loops that take what waits."""
        loop = asyncio.get_running_loop()
        while True:
            taken = [await waiting.get()]
            while len(taken) < args.batch and not waiting.empty():
                taken.append(waiting.get_nowait())
            texts = await loop.run_in_executor(threads, translate, [line for line, _ in taken])
            for (_, future), text in zip(taken, texts, strict=True):
                if not future.done():
                    future.set_result(text)

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        loops = [asyncio.create_task(work()) for _ in range(args.workers)]
        yield
        for each in loops:
            each.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.get("/ready")
    async def ready() -> dict:
        return {"status": "ready"}

    @app.post("/v1/translate")
    async def answer(request: Request) -> dict:
        future = asyncio.get_running_loop().create_future()
        waiting.put_nowait(((await request.json())["source"], future))
        return {"text": await future}

    return app


def converted(args: argparse.Namespace) -> str:
    """The folder of the converted model."""
    if not args.converted.exists():
        from ctranslate2.converters import FairseqConverter

        import fairseq_ext  # noqa: F401  lets fairseq be imported
        from fairseq_ext.plugin.compat import checkpoints

        with checkpoints.safe_globals():  # the converter loads with weights_only
            FairseqConverter(str(args.path), str(args.data), args.src, args.tgt).convert(
                str(args.converted)
            )
    return str(args.converted)


def main() -> None:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, kind in (
        ("path", Path),
        ("data", Path),
        ("src", str),
        ("tgt", str),
        ("spm", str),
        ("converted", Path),
    ):
        parse.add_argument(name, type=kind)
    for name, default in (("--port", 8001), ("--beam", 5), ("--workers", 1), ("--batch", 32)):
        parse.add_argument(name, type=int, default=default)
    args = parse.parse_args()
    translator = ctranslate2.Translator(
        converted(args), device="cpu", inter_threads=args.workers, intra_threads=1
    )
    pieces = sentencepiece.SentencePieceProcessor(model_file=args.spm)
    uvicorn.run(application(translator, pieces, args), port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
