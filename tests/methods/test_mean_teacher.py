import copy
from dataclasses import replace

import pytest
import torch

from aggmatch.methods.mean_teacher import Config, MeanTeacher


@pytest.fixture
def trained(toy_state):
    """A state after a few steps, when the average lags behind, and its next batch at a tenth of the training."""
    state = toy_state("mean_teacher")
    for _ in range(6):
        state.step()
    return state, replace(state.make_batch(*state.draw_indices()), progress=torch.tensor(0.1))


def probabilities(network, images):
    """Class probabilities of one batch, normalised by its own statistics."""
    return copy.deepcopy(network).train()(images).logits.detach().double().softmax(-1)


def spied(network):
    """Every batch of logits that the network returns from now on, its gradient kept."""
    outputs = []
    forward = network.forward

    def spy(images):
        output = forward(images)
        if output.logits.requires_grad:
            output.logits.retain_grad()
        outputs.append(output.logits)
        return output

    network.forward = spy
    return outputs


def test_the_loss_equals_the_definition(trained):
    state, batch = trained
    method = MeanTeacher(Config(unlabeled_weight=20.0, ramp=0.4), state.method.problem)
    labeled = probabilities(state.online, batch.labeled[0])
    teacher = probabilities(state.average, batch.unlabeled[0])
    student = probabilities(state.online, batch.unlabeled[1])
    loss = -sum(labeled[i, y].log() for i, y in enumerate(batch.labels.tolist())) / len(labeled)
    for i in range(len(teacher)):
        for y in range(3):
            loss += 20 * 0.25 * (teacher[i, y] - student[i, y]) ** 2 / (len(teacher) * 3)
    result = method.step(batch, state.online, state.average)
    assert result.parts["loss_unlabeled"] > 1e-4
    assert result.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    assert result.pseudo is not None
    assert result.pseudo.target.tolist() == teacher.argmax(-1).tolist()
    assert result.pseudo.weight.tolist() == [1.0] * len(teacher)


def test_the_student_is_pulled_towards_the_teacher(trained):
    # Prediction and target both from the teacher, a known mistake, would leave the student without this gradient.
    state, batch = trained
    method = MeanTeacher(Config(unlabeled_weight=20.0, ramp=0.4), state.method.problem)
    target = probabilities(state.average, batch.unlabeled[0])
    probs = probabilities(state.online, batch.unlabeled[1])
    of_student, of_teacher = spied(state.online), spied(state.average)
    method.step(batch, state.online, state.average).loss.backward()
    (_, student), (teacher,) = of_student, of_teacher
    assert not teacher.requires_grad
    m, classes = probs.shape
    expected = torch.zeros(m, classes, dtype=torch.float64)
    for i in range(m):
        for y in range(classes):
            for k in range(classes):
                slope = probs[i, k] * ((1 if k == y else 0) - probs[i, y])
                expected[i, y] += 20 * 0.25 * 2 / (m * classes) * (probs[i, k] - target[i, k]) * slope
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(student.grad.double(), expected, rtol=1e-3, atol=1e-7)


def test_the_network_learns_from_unlabelled_images_alone(trained):
    state, batch = trained
    forward = state.online.forward

    def without_labels(images):
        output = forward(images)
        return output._replace(logits=output.logits.detach()) if images is batch.labeled[0] else output

    state.online.forward = without_labels
    state.method.step(batch, state.online, state.average).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in state.online.parameters())


def test_the_teacher_gets_no_gradient_even_if_it_could(trained):
    state, batch = trained
    state.average.requires_grad_(True)
    state.method.step(batch, state.online, state.average).loss.backward()
    assert all(parameter.grad is None for parameter in state.average.parameters())


@pytest.mark.parametrize(
    ("progress", "ramp", "weight"),
    [(0.0, 0.4, 0.0), (0.2, 0.4, 0.5), (0.4, 0.4, 1.0), (0.9, 0.4, 1.0), (0.0, 0.0, 1.0)],
)
def test_the_weight_of_the_unlabelled_loss_follows_the_ramp(trained, progress, ramp, weight):
    state, batch = trained
    method = MeanTeacher(Config(unlabeled_weight=30.0, ramp=ramp), state.method.problem)
    result = method.step(replace(batch, progress=torch.tensor(progress)), state.online, state.average)
    unlabeled = result.loss - result.parts["loss_labeled"]
    assert result.parts["loss_unlabeled"] > 1e-4
    assert unlabeled.item() == pytest.approx(30 * weight * result.parts["loss_unlabeled"].item(), rel=1e-4, abs=1e-6)
    assert result.parts["ramp"].item() == pytest.approx(weight)


def test_running_statistics_are_those_of_labelled_images(trained):
    state, batch = trained
    expected, teacher = copy.deepcopy(state.online).train(), copy.deepcopy(state.average)
    expected(batch.labeled[0])
    state.method.step(batch, state.online, state.average)
    for name, buffer in state.online.named_buffers():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(buffer, expected.get_buffer(name)), name
            assert torch.equal(state.average.get_buffer(name), teacher.get_buffer(name)), name


def test_the_average_is_evaluated_with_the_statistics_of_the_online_network(trained):
    state, _ = trained
    state.step()
    online, average = dict(state.online.named_buffers()), dict(state.average.named_buffers())
    assert all(torch.equal(buffer, average[name]) for name, buffer in online.items())
    weights = zip(state.online.parameters(), state.average.parameters(), strict=True)
    assert not any(torch.equal(current, averaged) for current, averaged in weights)


def test_a_batch_has_two_views_of_as_many_unlabelled_images_as_labelled_ones():
    assert MeanTeacher.defaults == {"train.unlabeled_ratio": 1}
    assert MeanTeacher.views.unlabeled == ("weak", "weak")
