"""Every flag of decoding as a typed keyword.

scripts/typed_flags.py writes this file from the dataclasses.

`python -m fairseq_ext flags NAME` prints what a flag of this package means.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal

from typing_extensions import TypedDict

Text = str | PathLike[str]


class StockFlags(TypedDict, total=False):
    """fairseq's own flags of decoding."""

    add_data_source_prefix_tags: bool | None
    batch_size: int | None
    beam: int | None
    bpe: Literal[
        "bert", "byte_bpe", "bytes", "characters", "fastbpe", "gpt2", "hf_byte_bpe",
        "sentencepiece", "sentencepiece_pair", "subword_nmt",
    ] | None
    bpe_add_prefix_space: bool | None
    bpe_cased: bool | None
    bpe_codes: Text | None
    bpe_merges: Text | None
    bpe_separator: Text | None
    bpe_vocab: Text | None
    bpe_vocab_file: Text | None
    buffer_size: int | None
    checkpoint_shard_count: int | None
    checkpoint_suffix: Text | None
    config_yaml: Text | None
    constraints: Literal["ordered", "unordered"] | bool | None
    cpu: bool | None
    decoder_langtok: bool | None
    decoding_format: Literal["bs", "dp", "ensemble", "unigram", "vote"] | None
    diverse_beam_groups: int | None
    diverse_beam_strength: float | None
    diversity_rate: float | None
    enable_lang_ids: bool | None
    encoder_langtok: Literal["src", "tgt"] | None
    eos_token: Text | None
    fixed_dictionary: Text | None
    fp16: bool | None
    free_start: bool | None
    gpt2_encoder_json: Text | None
    gpt2_vocab_bpe: Text | None
    iter_decode_eos_penalty: float | None
    iter_decode_force_max_iter: bool | None
    iter_decode_max_iter: int | None
    iter_decode_with_beam: int | None
    iter_decode_with_external_reranker: bool | None
    keep_inference_langtok: bool | None
    lang_dict: Text | None
    lang_pairs: Text | None
    lang_tok_behind_eos: bool | None
    lang_tok_replacing_bos_eos: bool | None
    lang_tok_style: Literal["mbart", "multilingual"] | None
    langs: Text | None
    langtoks: Text | None
    langtoks_specs: Text | None
    left_pad_source: Text | None
    left_pad_target: Text | None
    lenpen: float | None
    lm_path: Text | None
    lm_weight: float | None
    log_format: Literal["json", "none", "simple", "tqdm"] | None
    log_interval: int | None
    match_source_len: bool | None
    max_len_a: float | None
    max_len_b: int | None
    max_source_positions: int | None
    max_target_positions: int | None
    max_tokens: int | None
    min_len: int | None
    model_overrides: Text | None
    moses_no_dash_splits: bool | None
    moses_no_escape: bool | None
    nbest: int | None
    no_beamable_mm: bool | None
    no_early_stop: bool | None
    no_progress_bar: bool | None
    no_repeat_ngram_size: int | None
    no_seed_provided: bool | None
    num_workers: int | None
    post_process: Text | bool | None
    prepend_bos: bool | None
    print_step: bool | None
    quiet: bool | None
    replace_unk: Text | bool | None
    required_batch_size_multiple: int | None
    results_path: Text | None
    retain_dropout: bool | None
    retain_dropout_modules: Text | None
    retain_iter_history: bool | None
    sacrebleu: bool | None
    sampling: bool | None
    sampling_topk: int | None
    sampling_topp: float | None
    score_reference: bool | None
    seed: int | None
    sentencepiece_alpha: float | None
    sentencepiece_enable_sampling: bool | None
    sentencepiece_model: Text | None
    sentencepiece_model_path: Text | None
    skip_invalid_size_inputs_valid_test: bool | None
    source_dict: Text | None
    source_lang: Text | None
    target_dict: Text | None
    target_lang: Text | None
    target_sentencepiece_model: Text | None
    temperature: float | None
    tokenizer: Literal["moses", "moses_normalized", "nltk", "space"] | None
    truncate_source: bool | None
    unkpen: float | None
    unnormalized: bool | None
    user_dir: Text | None


class EngineFlags(StockFlags, total=False):
    """The keywords of `Engine`: fairseq's own flags and those of this package."""

    allowed_automaton: Text | None
    allowed_file: Text | None
    allowed_regex: Text | None
    allowed_segmentation: Literal["any", "canonical"] | None
    avoid_case: Literal["any", "exact"] | None
    avoid_file: Text | None
    block_size: int | None
    constraint_bonus: float | None
    constraint_boundary: Literal["none", "prefix", "word"] | None
    constraint_case: Literal["any", "exact", "initial"] | None
    constraint_compete: Literal["off", "rows", "search"] | None
    constraint_end: bool | None
    constraint_rows: int | None
    cuda_graphs: Literal["auto", "off"] | None
    dba_allocation: Literal["even", "paper"] | None
    decoder_backend: Literal["auto", "fairseq", "transformer"] | None
    decoding: Literal["beam", "gs-jacobi", "hybrid-jacobi", "jacobi", "window"] | None
    draft: Literal["none", "pad", "repeat"] | None
    draft_cost: float | None
    gbs_base: int | None
    glossary: Text | None
    glossary_forms: Literal["auto", "off"] | None
    glossary_match: Literal["casefold", "lemma", "surface"] | None
    glossary_placement: Literal["align", "free"] | None
    glossary_repeat: Literal["each", "once"] | None
    int8: bool | None
    length_offset: float | None
    length_ratio: float | None
    length_reward: float | None
    length_reward_unbounded: bool | None
    lsh_bands: int | None
    lsh_hits: int | None
    lsh_k: int | None
    lsh_seed: int | None
    lsh_share: Literal["batch", "sentence"] | None
    lsh_top: int | None
    lsh_u: int | None
    mbr: Text | None
    mbr_aggregate: bool | None
    mbr_candidates: int | None
    mbr_prune: float | None
    mbr_references: int | None
    mbr_weights: Literal["prob", "uniform"] | None
    parallel_length: int | None
    parallel_margin: float | None
    patience: int | None
    print_utility: bool | None
    prune_bound: bool | None
    prune_children: int | None
    prune_finished: float | None
    prune_threshold: float | None
    refill_threshold: float | None
    sampling_epsilon: float | None
    schedule: Literal["batch", "stream"] | None
    select: Literal["bonus", "cbs", "dba", "diverse", "gbs", "sampling", "topk"] | None
    shortlist_counts: Text | None
    shortlist_file: Text | None
    shortlist_recall_every: int | None
    shortlist_share: Literal["batch", "sentence"] | None
    shortlist_top: int | None
    shortlist_words: int | None
    softmax: Literal["full", "lexical", "lsh", "screened", "top"] | None
    stop: Literal["count", "early", "first", "optimal", "ranked", "shrink"] | None
    stop_expansion: Literal["fairseq", "paper"] | None
    stream_flush: int | None
    stream_order: Literal["fifo", "shortest"] | None
    stream_rows: int | None
    stream_width: int | None


class Flags(EngineFlags, total=False):
    """The keywords of `Translator`."""

    allowed_file_per_line: Text | None
    constraints_file: Text | None
    cpu_workers: int | None
    ddg_dir: Text | None
    draft_file: Text | None
    glossary_documents: Text | None
    glossary_report: Text | None
    prefix_size: int | None
    print_alignment: Literal["hard", "soft"] | bool | None
    results_file: Text | None
    resume: bool | None
    stats_file: Text | None
    strict: bool | None
