"""What the engine's front end refuses of settings that fit each other badly."""

from __future__ import annotations

from workers.simulator.faults import ConfigRejected


def check_budget(chunked_prefill: bool | None, max_num_batched_tokens: int, max_model_len: int) -> None:
    """Without chunked prefill a step must hold the longest prompt. Raises ConfigRejected."""
    if chunked_prefill is False and max_num_batched_tokens < max_model_len:
        raise ConfigRejected(
            "1 validation error for SchedulerConfig\n  Value error, max_num_batched_tokens "
            f"({max_num_batched_tokens}) is smaller than max_model_len ({max_model_len}). This effectively limits the "
            "maximum sequence length to max_num_batched_tokens. Please increase max_num_batched_tokens or decrease "
            "max_model_len. [type=value_error]"
        )


def check_ranks(ranks: int, visible: int | None) -> None:
    """Every rank needs a device; `visible` is None where nothing limits them. Raises ConfigRejected."""
    if visible is not None and ranks > visible:
        raise ConfigRejected(
            f"1 validation error for ParallelConfig\n  Value error, World size ({ranks}) must be less than or equal to "
            f"the number of visible devices ({visible}). [type=value_error]"
        )


def check_sequence_parallel(ranks: int, rows: int) -> None:
    """A captured step is a multiple of the ranks and of the rows of a sequence (1 + drafts). Raises ConfigRejected."""
    step = max(ranks, rows)
    if step % ranks or step % rows:
        raise ConfigRejected(
            f"1 validation error for VllmConfig\n  Value error, tensor_parallel_size ({ranks}) and "
            f"num_speculative_tokens + 1 ({rows}) must divide one another when sequence parallelism is enabled. "
            "[type=value_error]"
        )
