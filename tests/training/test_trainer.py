"""The state that training changes, and its settings."""

import pytest
import torch


@pytest.mark.parametrize("method", ["aggmatch", "fixmatch"])
def test_the_memory_of_batchnorm_changes_what_is_evaluated_but_not_what_is_learned(toy_state, method):
    fast, slow = (
        toy_state(method, model__name="wrn-10-1", train__batchnorm_memory=memory, train__steps=1000)
        for memory in (0.01, None)
    )
    for state in (fast, slow):
        for _ in range(3):
            state.step()
    for name, value in slow.average.state_dict().items():
        equal = torch.equal(fast.average.state_dict()[name], value)
        assert equal != ("running" in name), name
