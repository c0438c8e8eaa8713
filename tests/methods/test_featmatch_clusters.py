"""Clusters of FeatMatch's features, from which it makes prototypes."""

import torch

from aggmatch.methods.featmatch import cosine_clusters, group_means


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def bundles(sizes, directions, seed=0):
    """Features close to some directions, of very different lengths."""
    number = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    noise = 0.01 * torch.randn(len(number), 3, generator=generator(seed))
    length = 0.1 + 10 * torch.rand(len(number), 1, generator=generator(seed))
    return length * (torch.tensor(directions)[number] + noise), number


def test_clusters_are_the_directions_of_each_class():
    directions = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.1, 0.0]]
    feature, number = bundles([30, 2, 2, 30], directions)
    # The last bundle is of another class: it is close to the first one but must stay separate.
    member = torch.stack([number < 3, number == 3])
    for seed in range(20):
        clusters = cosine_clusters(feature, member, 3, 5, generator(seed))
        found = {tuple(row.nonzero().flatten().tolist()) for row in clusters[0]}
        assert found == {tuple((number == n).nonzero().flatten().tolist()) for n in range(3)}
        assert torch.equal(clusters[1].sum(0), (number == 3).long())


def test_every_member_is_closest_to_the_mean_direction_of_its_cluster():
    feature = torch.randn(80, 4, generator=generator())
    member = torch.stack([torch.arange(80) < 50, torch.arange(80) >= 60])
    clusters = cosine_clusters(feature, member, 5, 100, generator())
    assert torch.equal(clusters.sum(1), member.long())
    unit = feature.double() / feature.double().norm(dim=1, keepdim=True)
    for y in range(2):
        centres = [unit[cluster].sum(0) for cluster in clusters[y]]
        for n in torch.nonzero(member[y]).flatten().tolist():
            cosines = [float(unit[n] @ centre / centre.norm()) for centre in centres]
            assert clusters[y, cosines.index(max(cosines)), n]


def test_means_are_of_the_features_themselves_and_groups_without_members_are_not_filled():
    feature = torch.tensor([[2.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 8.0, 0.0], [7.0, 7.0, 7.0]])
    member = torch.tensor([[True, True, True, False], [False, False, False, False]])
    mean, filled = group_means(feature, member, 5, 3, generator())
    assert filled.tolist() == [[True, True, True, False, False], [False] * 5]
    torch.testing.assert_close(mean[0, 0], torch.tensor([2 / 3, 4.0, 0.0]))
    assert sorted(mean[0, 1:3].tolist()) == [[0.0, 6.0, 0.0], [2.0, 0.0, 0.0]]
    assert (mean[~filled] == 0).all()
    only, filled = group_means(feature, member, 1, 3, generator())
    assert torch.equal(only, mean[:, :1])
    assert filled.tolist() == [[True], [False]]


def test_the_same_seed_gives_the_same_clusters():
    feature, member = torch.randn(40, 3, generator=generator()), torch.ones(1, 40, dtype=torch.bool)
    first, again, other = (cosine_clusters(feature, member, 6, 2, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
