"""Over how many ranks a checkpoint is cut, by names that fairseq, accelerate and DeepSpeed gave."""

import pytest

from stackyard.data.sharded import ranks_of

ZERO = ["bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt", "zero_pp_rank_{}_mp_rank_00_model_states.pt"]  # noqa: E501 # fmt: skip


def accelerate(update, ranks):
    return [
        f"update-{update}/pytorch_model/{name.format(n)}" for n in range(ranks) for name in ZERO
    ]


@pytest.mark.parametrize(
    ("paths", "ranks"),
    [
        ([], None),
        (["checkpoint_last-shard0.pt", "checkpoint_last-shard1.pt", "checkpoint1-shard0.pt"], 2),
        (["checkpoint_last.pt", "checkpoint_best.pt"], None),
        (accelerate(30, 4), 4),
        # The newest counts, not the last by name; what is not finished does not.
        (accelerate(9, 4) + accelerate(30, 2), 2),
        (accelerate(30, 2) + [p.replace("-30/", "-40.partial/") for p in accelerate(30, 4)], 2),
        (["latest", *(f"global_step5/zero_pp_rank_{dp}_mp_rank_0{mp}_optim_states.pt"
                      for dp in (0, 1) for mp in (0, 1))], 4),
        (["global_step5/mp_rank_00_model_states.pt", "update-3/model.safetensors"], None),
        (["update-3/__0_0.distcp", "update-3/.metadata"], None),
    ],
)  # fmt: skip
def test_the_newest_checkpoint_is_cut_over_these_ranks(paths, ranks):
    assert ranks_of(paths) == ranks
