"""What to write instead of the keywords of other decoders."""

from __future__ import annotations

from foretell.errors import show

_CACHE = 'recipe="prefix" (caches the prefix), recipe="dual" or recipe="fast-dllm" (cache all but the block)'
_TRACE = "trace=True, which keeps every step in completion.trace"
_FILES = "config.json of the checkpoint folder, which names the special tokens"
_SAMPLING = "temperature, top_p or top_k, which sample; without them decoding is greedy"
_SEEDS = "generate once per seed: one prompt gives one completion"

# {value} stands for the value that was given.
HINTS = {
    # LLaDA
    "confidence_eos_eot_inf": 'recipe="full score=deferred(renormalize=true)"',
    "logits_eos_inf": 'recipe="full ban_eos=first"',
    "mask_id": _FILES,
    # Dream
    "alg_temp": 'recipe="dream score=noisy(filtered(entropy),{value})"',
    "eps": 'recipe="dream transfer.eps={value}"',
    "generation_logits_hook_func": "your own policy in the recipe (docs/research.md)",
    "generation_tokens_hook_func": "stream, which yields one frame per step",
    "mask_token_id": _FILES,
    "output_history": _TRACE,
    # Fast-dLLM
    "confidence_threshold": "threshold={value}",
    "dual_cache": 'recipe="dual", or recipe="fast-dllm" to fill many masks at once as well',
    "factor": 'recipe="factor transfer.factor={value}"',
    "use_cache": _CACHE,
    # Prophet
    "constraints": "pins={value}, a mapping from window offsets to token ids or texts",
    "constraints_text": "suffix, or pins={{200: 'The answer is'}}, a mapping from window offsets to texts",
    "enable_early_exit": 'recipe="prophet"',
    "thresholds": 'recipe="prophet stop.tau.high=7.5 stop.tau.mid=5.0 stop.tau.low=2.5"',
    # transformers and vLLM
    "attention_mask": "prompts without padding, as a list of lists of token ids",
    "do_sample": _SAMPLING,
    "eos_token_id": _FILES,
    "guidance_scale": "cfg_scale, which is smaller by 1: 0 is no guidance",
    "ignore_eos": 'recipe="full ban_eos=true"',
    "input_ids": "the token ids as the prompt, the first argument",
    "inputs": "the prompt, the first argument",
    "max_length": "max_new_tokens, which counts the window without the prompt",
    "messages": "the messages as the prompt, the first argument",
    "n": _SEEDS,
    "num_return_sequences": _SEEDS,
    "output_scores": _TRACE,
    "past_key_values": _CACHE,
    "raw": "chat=False",
    "return_dict_in_generate": _TRACE,
    "stopping_criteria": "stop, a stopping rule (docs/research.md), or stop_strings",
    "tokenizer": "nothing: the engine has the tokenizer of its checkpoint folder",
}


def hint_for(name: str, value: object) -> str | None:
    """Return the message for a keyword of another decoder; None if no other decoder has it."""
    if name not in HINTS:
        return None
    return f"unknown argument {name!r}; write instead: {HINTS[name].format(value=show(value))}"
