import pytest
import torch

from aggmatch.data import DataSet
from aggmatch.evaluation import Evaluation, evaluate, predict


def test_accuracies_follow_from_the_predictions():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.6, 0.4, 0.0], [0.1, 0.8, 0.1], [0.2, 0.5, 0.3]])
    result = Evaluation(probs, torch.tensor([0, 1, 1, 1]))
    assert result.predicted.tolist() == [0, 0, 1, 1]
    assert result.accuracy == 75.0
    assert result.confusion.tolist() == [[1, 0, 0], [1, 2, 0], [0, 0, 0]]
    assert result.class_sizes == [1, 3, 0]
    assert result.class_accuracy == pytest.approx([100.0, 200 / 3, 0.0])
    assert result.balanced_accuracy == pytest.approx((100 + 200 / 3) / 2), "without the empty class"


def test_the_example_of_the_docstring_is_right():
    result = Evaluation(probs=torch.eye(3), labels=torch.tensor([0, 1, 1]))
    assert round(result.accuracy, 2) == 66.67


def test_evaluating_does_not_change_the_network(toy_state, toy_data: DataSet):
    state = toy_state("paws")
    state.step()
    before = {name: tensor.clone() for name, tensor in state.online.state_dict().items()}
    state.online.train()
    result = evaluate(state.method, state.online, toy_data.test, toy_data.train.take(range(6)))
    assert state.online.training
    assert not result.probs.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in state.online.state_dict().items())


def test_an_error_during_a_prediction_leaves_the_network_in_training_mode(toy_state, toy_data: DataSet):
    state, threads = toy_state("supervised"), torch.get_num_threads()
    state.online.train()

    def fail(network, images):
        assert not network.training
        raise RuntimeError("no prediction")

    state.method.predict = fail
    with pytest.raises(RuntimeError, match="no prediction"):
        predict(state.method, state.online, toy_data.test.pixels, threads=threads + 1)
    assert state.online.training
    assert torch.is_grad_enabled()
    assert torch.get_num_threads() == threads
