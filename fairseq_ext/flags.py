"""Every flag of decoding as a typed keyword: written by scripts/typed_flags.py from the dataclasses, not by hand."""

from __future__ import annotations

from os import PathLike
from typing import Literal

from typing_extensions import TypedDict

Text = str | PathLike[str]


class StockFlags(TypedDict, total=False):
    """fairseq's own flags of decoding."""

    # prepend beginning of sentence token (<s>)
    add_bos_token: bool | None
    # the dictionary ends in the tags of NLLB's training data, which its checkpoints have embeddings of
    add_data_source_prefix_tags: bool | None
    # path to the baseline model (default: none)
    baseline_model: Text | None
    # comma-separated list of languages in the baseline model (default: none)
    baseline_model_langs: Text | None
    # number of examples in a batch
    batch_size: int | None
    # beam size
    beam: int | None
    bpe: Literal["bert", "byte_bpe", "bytes", "characters", "fastbpe", "gpt2", "hf_byte_bpe", "sentencepiece", "subword_nmt"] | None
    # add prefix space before encoding
    bpe_add_prefix_space: bool | None
    # set for cased BPE
    bpe_cased: bool | None
    # path to fastBPE BPE
    bpe_codes: Text | None
    # path to merges.txt
    bpe_merges: Text | None
    # BPE separator
    bpe_separator: Text | None
    # path to vocab.json
    bpe_vocab: Text | None
    # bpe vocab file
    bpe_vocab_file: Text | None
    # read this many sentences into a buffer before processing them
    buffer_size: int | None
    # Number of shards containing the checkpoint - if the checkpoint is over 300GB, it is preferable to split
    # it into shards to prevent OOM on CPU while loading the checkpoint
    checkpoint_shard_count: int | None
    # suffix to add to the checkpoint file name
    checkpoint_suffix: Text | None
    # Configuration YAML filename (under manifest root)
    config_yaml: Text | None
    # enables lexically constrained decoding
    constraints: Literal["ordered", "unordered"] | bool | None
    # use CPU instead of CUDA
    cpu: bool | None
    # replace beginning-of-sentence in target sentence with target language token
    decoder_langtok: bool | None
    # special decoding format for advanced decoding.
    decoding_format: Literal["bs", "dp", "ensemble", "unigram", "vote"] | None
    # number of groups for Diverse Beam Search
    diverse_beam_groups: int | None
    # strength of diversity penalty for Diverse Beam Search
    diverse_beam_strength: float | None
    # strength of diversity penalty for Diverse Siblings Search
    diversity_rate: float | None
    # whether to include language IDs in samples
    enable_lang_ids: bool | None
    # whether to allow datasets be used in reversed directions
    enable_reservsed_directions_shared_datasets: bool | None
    # replace beginning-of-sentence in source sentence with source or target language token. (src/tgt)
    encoder_langtok: Literal["src", "tgt"] | None
    # EOS token
    eos_token: Text | None
    # evaluation with BLEU scores
    eval_bleu: bool | None
    # generation args for BLUE scoring, e.g., '{"beam": 4, "lenpen": 0.6}', as JSON string
    eval_bleu_args: Text | None
    # detokenize before computing BLEU (e.g., 'moses'); required if using --eval-bleu; use 'space' to disable
    # detokenization; see fairseq.data.encoders for other options
    eval_bleu_detok: Text | None
    # args for building the tokenizer, if needed, as JSON string
    eval_bleu_detok_args: Text | None
    # print sample generations during validation
    eval_bleu_print_samples: bool | None
    # remove BPE before computing BLEU
    eval_bleu_remove_bpe: Text | bool | None
    # compute tokenized BLEU instead of sacrebleu
    eval_tokenized_bleu: bool | None
    # a dictionary of data name to this path, e.g. {"mined", path_to_mined_data, "denoised":
    # path_to_denoised_data}
    extra_data: Text | None
    # a dictionary of data name to the language pairs they serve, e.g. {"mined": comma-separated-lang-pairs,
    # "denoised": comma-separated-lang-pairs}
    extra_lang_pairs: Text | None
    # Fixed dictionary to use with model path
    fixed_dictionary: Text | None
    # use FP16
    fp16: bool | None
    # include future target
    future_target: bool | None
    # path to encoder.json
    gpt2_encoder_json: Text | None
    # path to vocab.bpe
    gpt2_vocab_bpe: Text | None
    # if > 0.0, it penalized early-stopping in decoding.
    iter_decode_eos_penalty: float | None
    # if set, run exact the maximum number of iterations without early stop
    iter_decode_force_max_iter: bool | None
    # maximum iterations for iterative refinement.
    iter_decode_max_iter: int | None
    # if > 1, model will generate translations varying by the lengths.
    iter_decode_with_beam: int | None
    # if set, the last checkpoint are assumed to be a reranker to rescore the translations
    iter_decode_with_external_reranker: bool | None
    # keep language tokens in inference output (e.g. for analysis or debugging)
    keep_inference_langtok: bool | None
    # an external file which contains a list of languages which can appear in lang-pairs; note that the
    # ordering determines language token IDs; --langs and --lang-dict are two exclusive options
    lang_dict: Text | None
    # comma-separated list of language pairs (in training order): en-de,en-fr,de-fr
    lang_pairs: Text | None
    # absolute path of tsv file location to indicate lang to offline shard ratio.
    lang_to_offline_shard_ratio: Text | None
    lang_tok_replacing_bos_eos: bool | None
    # language token styles
    lang_tok_style: Literal["mbart", "multilingual"] | None
    # comma-separated list of languages (default: all directories in data path)
    langs: Text | None
    # a dictionary of how to add language tokens, e.g. {"mined": (None, "tgt"), "mono_dae": ("src.dae",
    # "tgt"), "main": ("src", "tgt")}, or {"mined": ("src.mined", "tgt")}
    langtoks: Text | None
    # a list of comma separated data types that a set of language tokens to be specialized for, e.g.
    # "main,dae,mined". There will be a set of language tokens added to the vocab to distinguish languages in
    # different training data types. If not specified, default language tokens per languages will be added
    langtoks_specs: Text | None
    # pad the source on the left (default: True)
    left_pad_source: Text | None
    # pad the target on the left (default: False)
    left_pad_target: Text | None
    # length penalty: <1.0 favors shorter, >1.0 favors longer sentences
    lenpen: float | None
    # path to lm checkpoint for lm fusion
    lm_path: Text | None
    # weight for lm probs for lm fusion
    lm_weight: float | None
    # load the binarized alignments
    load_alignments: bool | None
    # log format to use
    log_format: Literal["json", "none", "simple", "tqdm"] | None
    # log progress every N batches (when progress bar is disabled)
    log_interval: int | None
    # generations should match the source length
    match_source_len: bool | None
    # generate sequences of maximum length ax + b, where x is the source length
    max_len_a: float | None
    # generate sequences of maximum length ax + b, where x is the source length
    max_len_b: int | None
    # max number of tokens in the source sequence
    max_source_positions: int | None
    # max number of tokens in the target sequence
    max_target_positions: int | None
    # maximum number of tokens in a batch
    max_tokens: int | None
    # minimum generation length
    min_len: int | None
    # a dictionary used to override model args at generation that were used during model training
    model_overrides: Text | None
    # don't apply dash split rules
    moses_no_dash_splits: bool | None
    # don't perform HTML escaping on apostrophe, quotes, etc.
    moses_no_escape: bool | None
    # smoothing alpha for sample rations across multiple datasets
    multilang_sampling_alpha: float | None
    # number of hypotheses to output
    nbest: int | None
    # don't use BeamableMM in attention layers
    no_beamable_mm: bool | None
    # deprecated
    no_early_stop: bool | None
    # disable progress bar
    no_progress_bar: bool | None
    # ngram blocking such that this size ngram cannot be repeated in the generation
    no_repeat_ngram_size: int | None
    # if set, dont use seed for initializing random generators
    no_seed_provided: bool | None
    # if >0, then bucket source and target lengths into N buckets and pad accordingly; this is useful on TPUs
    # to minimize the number of compilations
    num_batch_buckets: int | None
    # how many subprocesses to use for data loading
    num_workers: int | None
    # limit the size of output dictionary
    output_dictionary_size: int | None
    # boolean to pad to fixed batch size
    pad_to_fixed_bsz: bool | None
    # pad to fixed length
    pad_to_fixed_length: bool | None
    # include past target
    past_target: bool | None
    # post-process text by removing BPE, letter segmentation, etc. Valid options can be found in
    # fairseq.data.utils.post_process.
    post_process: Text | bool | None
    # prepend bos token to each sentence, which matches mBART pretraining
    prepend_bos: bool | None
    # print steps
    print_step: bool | None
    # only print final scores
    quiet: bool | None
    # perform unknown replacement (optionally with alignment dictionary)
    replace_unk: Text | bool | None
    # batch size will be a multiplier of this value
    required_batch_size_multiple: int | None
    # path to save eval results (optional)
    results_path: Text | None
    # Use dropout at inference time
    retain_dropout: bool | None
    # if set, only retain dropout for the specified modules; if not set, then dropout will be retained for all
    # modules
    retain_dropout_modules: Text | None
    # if set, decoding returns the whole history of iterative refinement
    retain_iter_history: bool | None
    # score with sacrebleu
    sacrebleu: bool | None
    # If omitted or "none", fills each sample with tokens-per-sample tokens. If set to "complete", splits
    # samples only at the end of sentence, but may include multiple sentences per sample. "complete_doc" is
    # similar but respects doc boundaries. If set to "eos", includes only one sentence per sample.
    sample_break_mode: Literal["complete", "complete_doc", "eos", "none"] | None
    # sample hypotheses instead of using beam search
    sampling: bool | None
    # The method to sample data per language pairs
    sampling_method: Literal["RoundRobin", "concat", "temperature", "uniform"] | None
    # only work with --sampling-method temperature
    sampling_temperature: float | None
    # sample from top K likely next words instead of all words
    sampling_topk: int | None
    # sample from the smallest set whose cumulative probability mass exceeds p for next words
    sampling_topp: float | None
    # a dictionary of how to sample data sets, e.g. { "main:en_XX-es_XX": 0.2, "mined:en_XX-pt_XX": 0.5,
    # "mono_dae:es_XX-es_XX: 0.3, "main:en_xx-fr_XX": 0.8 }
    sampling_weights: Text | None
    # a file contain a python dictionary of how to sample data sets, e.g. { "main:en_XX-es_XX": 0.2,
    # "mined:en_XX-pt_XX": 0.5, "mono_dae:es_XX-es_XX: 0.3, "main:en_xx-fr_XX": 0.8 }
    sampling_weights_from_file: Text | None
    # just score the reference translation
    score_reference: bool | None
    # pseudo random number generator seed
    seed: int | None
    # include self target
    self_target: bool | None
    # soothing parameter for unigram sampling, and merge probability for BPE-dropout
    sentencepiece_alpha: float | None
    # enable sampling
    sentencepiece_enable_sampling: bool | None
    # path to sentencepiece model
    sentencepiece_model: Text | None
    # path to sentencepiece model
    sentencepiece_model_path: Text | None
    # comma-separated list of dataset splits to apply shortening to, e.g., "train,valid" (default: all dataset
    # splits)
    shorten_data_split_list: Text | None
    # if not none, shorten sequences that exceed --tokens-per-sample
    shorten_method: Literal["none", "random_crop", "truncate"] | None
    # ignore too long or too short lines in valid and test set
    skip_invalid_size_inputs_valid_test: bool | None
    # path to source dictionary; if specified it will override per language dictionary loading
    source_dict: Text | None
    # source language (only needed for inference)
    source_lang: Text | None
    # path to target dictionary; if specified it will override per language dictionary loading
    target_dict: Text | None
    # target language (only needed for inference)
    target_lang: Text | None
    # temperature for generation
    temperature: float | None
    tokenizer: Literal["moses", "nltk", "space"] | None
    # max number of tokens per sample for LM dataset
    tokens_per_sample: int | None
    # truncate source to max-source-positions
    truncate_source: bool | None
    # unknown word penalty: <0 produces more unks, >0 produces fewer
    unkpen: float | None
    # compare unnormalized hypothesis scores
    unnormalized: bool | None
    # amount to upsample primary dataset
    upsample_primary: int | None
    # path to a python module containing custom extensions (tasks and/or architectures)
    user_dir: Text | None
    # virtual data size of the whole joint dataset to speedup data loading and have specific dynamic sampling
    # strategy interval
    virtual_data_size: int | None
    # virtual epoch size to speed up data loading
    virtual_epoch_size: int | None


class EngineFlags(StockFlags, total=False):
    """Those, and this package's: what `Engine` takes."""

    # in which case a banned phrase must not appear: in any, or as written (exact) (default: any)
    avoid_case: Literal["any", "exact"] | None
    # phrases that must never appear, one a line (default: none)
    avoid_file: Text | None
    # tokens that a call reads at most in each row (1: greedy; default 0: 3, or with window as many as pay
    # off)
    block_size: int | None
    # prefer required phrases by so many nats for each of their tokens, instead of forcing them (default: they
    # are forced)
    constraint_bonus: float | None
    # where a required or banned phrase counts: as whole words; from the start of a word, a suffix may follow
    # (prefix: a banned phrase then bans the words that begin with it); or inside words as well (none)
    # (default: word where the target's segmentation is known, else none)
    constraint_boundary: Literal["none", "prefix", "word"] | None
    # in which case a required phrase counts: as written; with a capital too where it starts the translation
    # (initial); or any (default: initial for --glossary, else exact)
    constraint_case: Literal["any", "exact", "initial"] | None
    # search without required phrases first (or with --constraint-bonus), and force them only in sentences
    # that miss one (default: off)
    constraint_draft_first: bool | None
    # nothing but EOS and closing quotes follows the end of a sentence, and required phrases come before it
    # (default: off)
    constraint_end: bool | None
    # decoder steps on a GPU: one launch each, or many (off; same results; default: auto)
    cuda_graphs: Literal["auto", "off"] | None
    # how dba divides the beam among its banks: one slot a bank in turn, or by the rule of Post and Vilar
    # (default: even)
    dba_allocation: Literal["even", "paper"] | None
    # the decoder (same results): the fastest that supports the model, or fairseq's own modules (default:
    # auto)
    decoder_backend: Literal["auto", "fairseq", "transformer"] | None
    # what drives the decoder (default: beam, beam search)
    decoding: Literal["beam", "gs-jacobi", "hybrid-jacobi", "jacobi", "window"] | None
    # first guess of a block: pad (the paper), repeat (the last token), copy (of source tokens), ngram (a
    # table made by scripts/build_drafts.py), none (default auto: ngram where there is a table, else repeat)
    draft: Literal["auto", "copy", "ngram", "none", "pad", "repeat"] | None
    # cost of one more position, in decoder calls; window weighs drafts by it (default -1: by device and rows)
    draft_cost: float | None
    # the table of --draft ngram (default: CHECKPOINT.drafts.npz beside the checkpoint, if it is there)
    draft_table: Text | None
    # slots of each bank under --select gbs; replaces --beam (default: 1; the paper: 1, 5, 10)
    gbs_base: int | None
    # terms for every sentence whose source holds them: TSV, CSV, TBX-Basic or JSONL of source and target term
    # (or a|b) (default: none; in any order unless --constraints is ordered)
    glossary: Text | None
    # how --glossary finds terms in sources: as written, in any case, or in any form of the words (default:
    # surface)
    glossary_match: Literal["casefold", "lemma", "surface"] | None
    # where a term of --glossary stands: in the place of the words that translate its source term (align), or
    # wherever the search puts it (free) (default: align with --select dba where --bpe or --tokenizer is given
    # and no other flag needs the search's own hypotheses, else free)
    glossary_placement: Literal["align", "free"] | None
    # a term of --glossary that a source has n times is required once, or n times (each) (default: once)
    glossary_repeat: Literal["each", "once"] | None
    # linear layers in 8 bits: faster on a CPU, other results (default: off)
    int8: bool | None
    # added to the wanted target length, in subwords (default: 0; scripts/tune_length_reward.py fits both)
    length_offset: float | None
    # wanted target length over source length, in subwords without EOS (default: 1; measure it on a dev set)
    length_ratio: float | None
    # added for each target token up to the wanted length, in nats (default: 0; needs --unnormalized)
    length_reward: float | None
    # reward every target token, however many (default: off)
    length_reward_unbounded: bool | None
    # W: bands (default: 100; the paper: 500)
    lsh_bands: int | None
    # t: equal bands that make a word a candidate (default: 2; 0: every word)
    lsh_hits: int | None
    # keep the index beside this file (default: the checkpoint; off: keep none)
    lsh_index: Text | None
    # K: dimensions that each hash function compares (default: 16; the paper: 8, 16)
    lsh_k: int | None
    # what hypotheses' scores are normalised over: the shortlist (list), or exact, all words, in one more pass
    # at the end (default: list, as the paper)
    lsh_normalise: Literal["exact", "list"] | None
    # seed of the random permutations (default: 1)
    lsh_seed: int | None
    # batch: one shortlist for all rows; sentence: one for each sentence (default: batch, as the paper)
    lsh_share: Literal["batch", "sentence"] | None
    # how codes are looked up (same results; default auto: by address up to 16 bits, else cuckoo)
    lsh_table: Literal["auto", "cuckoo", "direct"] | None
    # T: most frequent words on every shortlist (default: 6000; all: V)
    lsh_top: int | None
    # u: hash codes of a band (default: 3, as the paper)
    lsh_u: int | None
    # target tokens decoded in parallel by jacobi (its block) and hybrid-jacobi (default 0: 1.25 x source
    # tokens)
    parallel_length: int | None
    # half precision: read a position again alone where its two best words are closer than this, in nats (0:
    # never; default -1: by precision, 0 for float32)
    parallel_margin: float | None
    # wait for patience x beam finished hypotheses (default: 1 as in fairseq, or --stop early with
    # constraints)
    patience: int | None
    # with --stop optimal: drop live hypotheses that provably cannot enter the n-best list (default: off)
    prune_bound: bool | None
    # continue a hypothesis in at most so many ways (default: off, or --beam; the paper: 5)
    prune_children: int | None
    # drop what is worse than the best finished hypothesis by more than this, in nats (default: off; the
    # paper: 20)
    prune_finished: float | None
    # drop what is worse than the best candidate by more than this, in nats (default: off; the paper: 1.5)
    prune_threshold: float | None
    # new sentences start when at most this share of the stream's width is left (default: 1/6)
    refill_threshold: float | None
    # when sentences start (default: batch, as fairseq: all together)
    schedule: Literal["batch", "stream"] | None
    # --softmax screened: bits of the weights (default: 16, scores to 1e-6; 8: scores to 1e-3, on a CPU)
    screen_bits: Literal["16", "8"] | None
    # how continuations are chosen (default: dba where there are constraints, else topk, as fairseq)
    select: Literal["bonus", "cbs", "dba", "gbs", "topk"] | None
    # lines 'word count' of the target side, for the most frequent words (default: the target dictionary's
    # counts)
    shortlist_counts: Text | None
    # --softmax lexical: lines 'source word, target word, probability' of a lexical table (default: none)
    shortlist_file: Text | None
    # for --stats-file: calls from one check against the full softmax to the next (default: 128; 0: never)
    shortlist_recall_every: int | None
    # one shortlist for all rows decoded together, or one for each sentence (default: batch)
    shortlist_share: Literal["batch", "sentence"] | None
    # most frequent target words on every shortlist (default: 2000; all: the vocabulary's size)
    shortlist_top: int | None
    # --softmax lexical: translations of each source word (default: 20)
    shortlist_words: int | None
    # which words are scored (default: full, all of them)
    softmax: Literal["full", "lexical", "lsh", "screened", "top"] | None
    # when a sentence is final (default: early where there are constraints, else count, as fairseq: beam-many
    # finished hypotheses)
    stop: Literal["count", "early", "first", "optimal", "ranked", "shrink"] | None
    # whether a candidate that ends takes a slot of its step's beam (paper) or not (default: fairseq)
    stop_expansion: Literal["fairseq", "paper"] | None
    # shortest: the sentences with the fewest tokens are decoded until they are level with the others; fifo:
    # all in turn (default: shortest, as the paper; same results)
    stream_order: Literal["fifo", "shortest"] | None
    # limit the rows of a decoder call instead of the sentences, --stream-width (default: none)
    stream_rows: int | None
    # sentences that are decoded at once under --schedule stream (default: 64)
    stream_width: int | None


class Flags(EngineFlags, total=False):
    """What `Translator` takes."""

    # phrases that must appear: one line a sentence in corpus order, tab-separated, or JSONL (default: none;
    # in any order unless --constraints is ordered)
    constraints_file: Text | None
    # processes of one thread that share each batch's sentences on a CPU (default: 1)
    cpu_workers: int | None
    # write each sentence's decoding dependency graph (JSON, PNG, SVG, HTML) to this directory (default: none)
    ddg_dir: Text | None
    # earlier translations as drafts, one segmented line a sentence (default: none)
    draft_file: Text | None
    # write which terms of --glossary fired, and their forms, to this JSONL file (default: none)
    glossary_report: Text | None
    # initialize generation by target prefix of given length
    prefix_size: int | None
    # if set, uses attention feedback to compute and print alignment to source tokens (valid options are:
    # hard, soft, otherwise treated as hard alignment)
    print_alignment: Literal["hard", "soft"] | bool | None
    # also write each sentence's results to this JSONL file as it finishes (default: none)
    results_file: Text | None
    # sentences that --results-file has already are not decoded again (default: off)
    resume: bool | None
    # write counts and times of the run to this JSON file (default: none)
    stats_file: Text | None
    # end at the first sentence that cannot be translated (default: go on, with status 3)
    strict: bool | None
