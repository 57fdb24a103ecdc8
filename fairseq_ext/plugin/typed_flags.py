"""Every flag of decoding as a typed keyword.

scripts/typed_flags.py writes this file from the dataclasses.

`python -m fairseq_ext flags NAME` prints what a flag of this package means.
"""

from __future__ import annotations

from os import PathLike
from typing import Literal

from typing_extensions import TypedDict

# a flag that is None is not given
Text = str | PathLike[str] | None
Number = int | None
Real = float | None
Switch = bool | None


class StockFlags(TypedDict, total=False):
    """fairseq's own flags of decoding."""

    add_data_source_prefix_tags: Switch
    batch_size: Number
    beam: Number
    bpe: Literal[
        "bert", "byte_bpe", "bytes", "characters", "fastbpe", "gpt2", "hf_byte_bpe",
        "sentencepiece", "sentencepiece_pair", "subword_nmt", None,
    ]
    bpe_add_prefix_space: Switch
    bpe_cased: Switch
    bpe_codes: Text
    bpe_merges: Text
    bpe_separator: Text
    bpe_vocab: Text
    bpe_vocab_file: Text
    buffer_size: Number
    checkpoint_shard_count: Number
    checkpoint_suffix: Text
    config_yaml: Text
    constraints: Literal["ordered", "unordered", None] | bool
    cpu: Switch
    decoder_langtok: Switch
    decoding_format: Literal["bs", "dp", "ensemble", "unigram", "vote", None]
    diverse_beam_groups: Number
    diverse_beam_strength: Real
    diversity_rate: Real
    enable_lang_ids: Switch
    encoder_langtok: Literal["src", "tgt", None]
    eos_token: Text
    fixed_dictionary: Text
    fp16: Switch
    free_start: Switch
    gpt2_encoder_json: Text
    gpt2_vocab_bpe: Text
    iter_decode_eos_penalty: Real
    iter_decode_force_max_iter: Switch
    iter_decode_max_iter: Number
    iter_decode_with_beam: Number
    iter_decode_with_external_reranker: Switch
    keep_inference_langtok: Switch
    lang_dict: Text
    lang_pairs: Text
    lang_tok_behind_eos: Switch
    lang_tok_replacing_bos_eos: Switch
    lang_tok_style: Literal["mbart", "multilingual", None]
    langs: Text
    langtoks: Text
    langtoks_specs: Text
    left_pad_source: Text
    left_pad_target: Text
    lenpen: Real
    lm_path: Text
    lm_weight: Real
    log_format: Literal["json", "none", "simple", "tqdm", None]
    log_interval: Number
    match_source_len: Switch
    max_len_a: Real
    max_len_b: Number
    max_source_positions: Number
    max_target_positions: Number
    max_tokens: Number
    min_len: Number
    model_overrides: Text
    moses_no_dash_splits: Switch
    moses_no_escape: Switch
    nbest: Number
    no_beamable_mm: Switch
    no_early_stop: Switch
    no_progress_bar: Switch
    no_repeat_ngram_size: Number
    no_seed_provided: Switch
    num_workers: Number
    post_process: Text | bool
    prepend_bos: Switch
    print_step: Switch
    quiet: Switch
    replace_unk: Text | bool
    required_batch_size_multiple: Number
    results_path: Text
    retain_dropout: Switch
    retain_dropout_modules: Text
    retain_iter_history: Switch
    sacrebleu: Switch
    sampling: Switch
    sampling_topk: Number
    sampling_topp: Real
    score_reference: Switch
    seed: Number
    sentencepiece_alpha: Real
    sentencepiece_enable_sampling: Switch
    sentencepiece_model: Text
    sentencepiece_model_path: Text
    skip_invalid_size_inputs_valid_test: Switch
    source_dict: Text
    source_lang: Text
    target_dict: Text
    target_lang: Text
    target_sentencepiece_model: Text
    temperature: Real
    tokenizer: Literal["moses", "moses_normalized", "nltk", "space", None]
    truncate_source: Switch
    unkpen: Real
    unnormalized: Switch
    user_dir: Text


class EngineFlags(StockFlags, total=False):
    """The keywords of `Engine`: fairseq's own flags and those of this package."""

    allowed_automaton: Text
    allowed_file: Text
    allowed_regex: Text
    allowed_segmentation: Literal["any", "canonical", None]
    avoid_case: Literal["any", "exact", None]
    avoid_file: Text
    block_size: Number
    constraint_bonus: Real
    constraint_boundary: Literal["none", "prefix", "word", None]
    constraint_case: Literal["any", "exact", "initial", None]
    constraint_compete: Literal["off", "rows", "search", None]
    constraint_end: Switch
    constraint_rows: Number
    cuda_graphs: Literal["auto", "off", None]
    dba_allocation: Literal["even", "paper", None]
    decoder_backend: Literal["auto", "fairseq", "transformer", None]
    decoding: Literal["beam", "gs-jacobi", "hybrid-jacobi", "jacobi", "window", None]
    draft: Literal["none", "pad", "repeat", None]
    draft_cost: Real
    gbs_base: Number
    glossary: Text
    glossary_forms: Literal["auto", "off", None]
    glossary_match: Literal["casefold", "lemma", "surface", None]
    glossary_placement: Literal["align", "free", None]
    glossary_repeat: Literal["each", "once", None]
    int8: Switch
    length_offset: Real
    length_ratio: Real
    length_reward: Real
    length_reward_unbounded: Switch
    lsh_bands: Number
    lsh_hits: Number
    lsh_k: Number
    lsh_seed: Number
    lsh_share: Literal["batch", "sentence", None]
    lsh_top: Number
    lsh_u: Number
    mbr: Text
    mbr_aggregate: Switch
    mbr_candidates: Number
    mbr_prune: Real
    mbr_references: Number
    mbr_weights: Literal["prob", "uniform", None]
    parallel_length: Number
    parallel_margin: Real
    patience: Number
    print_utility: Switch
    prune_bound: Switch
    prune_children: Number
    prune_finished: Real
    prune_threshold: Real
    refill_threshold: Real
    sampling_epsilon: Real
    schedule: Literal["batch", "stream", None]
    select: Literal["bonus", "cbs", "dba", "diverse", "gbs", "sampling", "topk", None]
    shortlist_counts: Text
    shortlist_file: Text
    shortlist_recall_every: Number
    shortlist_share: Literal["batch", "sentence", None]
    shortlist_top: Number
    shortlist_words: Number
    softmax: Literal["full", "lexical", "lsh", "screened", "top", None]
    stop: Literal["count", "early", "first", "optimal", "ranked", "shrink", None]
    stop_expansion: Literal["fairseq", "paper", None]
    stream_flush: Number
    stream_order: Literal["fifo", "shortest", None]
    stream_rows: Number
    stream_width: Number


class Flags(EngineFlags, total=False):
    """The keywords of `Translator`."""

    allowed_file_per_line: Text
    constraints_file: Text
    cpu_workers: Number
    ddg_dir: Text
    draft_file: Text
    glossary_documents: Text
    glossary_report: Text
    prefix_size: Number
    print_alignment: Literal["hard", "soft", None] | bool
    results_file: Text
    resume: Switch
    stats_file: Text
    strict: Switch
