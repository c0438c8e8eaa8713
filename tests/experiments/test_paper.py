import pytest
import torch

from aggmatch.bench.step import stand_in
from aggmatch.config import Layer
from aggmatch.data import SOURCES
from aggmatch.errors import AggMatchError
from aggmatch.experiments import paper
from aggmatch.experiments.paper import TABLES, Cell, Figure, find_table, grid
from aggmatch.settings import resolve
from aggmatch.training.trainer import Trainer

CELLS = [(table, cell) for table in TABLES.values() for cell in table.cells]


def cell(table: str, row: str, column: str) -> Cell:
    (found,) = (cell for cell in TABLES[table].cells if (cell.row, cell.column) == (row, column))
    return found


@pytest.mark.parametrize(
    ("table", "row", "column", "mean", "std"),
    [
        ("main", "Pseudo-Label", "CIFAR-10, 250", 51.22, 0.43),
        ("main", "MixMatch", "SVHN, 40", 57.45, 14.53),
        ("main", "FixMatch", "CIFAR-10, 40", 86.19, 3.37),
        ("main", "FeatMatch", "SVHN, 250", 96.66, 0.19),
        ("main", "PAWS", "CIFAR-10, 80", 88.72, 0.84),
        ("main", "AggMatch", "CIFAR-100, 400", 55.58, 1.57),
        ("noise", "FixMatch", "SVHN, 250, 50 %", 75.12, 2.04),
        ("noise", "AggMatch", "CIFAR-10, 40, 25 %", 77.63, 12.29),
        ("per-class", "FixMatch", "cat", 28.1, None),
        ("per-class", "AggMatch", "all", 93.01, None),
        ("components", "without refinement", "with confidence", 90.26, 1.93),
        ("components", "with refinement", "without confidence", 90.56, 2.63),
        ("similarity", "features only", "CIFAR-10, 40", 89.58, 5.02),
        ("confidence", "threshold, τ_u 0.5", "CIFAR-10, 40", 89.89, None),
        ("queue", "512", "CIFAR-10, 40", 92.09, None),
        ("momentum", "momentum network", "CIFAR-10, 40", 92.09, None),
    ],
)
def test_the_numbers_are_those_of_the_paper(table, row, column, mean, std):
    figure = cell(table, row, column).paper
    assert figure
    assert (figure.mean, figure.std) == (mean, std)


def test_a_dash_is_a_cell_without_a_number():
    assert cell("main", "PAWS", "SVHN, 40").paper is None
    assert cell("momentum", "online network", "CIFAR-10, 40").paper is None
    assert sum(cell.paper is not None for cell in TABLES["main"].cells) == 35


def test_the_main_table_has_nine_methods_in_six_columns():
    main = TABLES["main"]
    assert len(main.rows) == 9
    assert len(main.columns) == 6
    assert len(main.cells) == 54
    assert len({cell.settings["method.name"] for cell in main.cells}) == 9


def test_the_classes_of_the_per_class_table_are_those_of_the_data_set_and_average_to_its_total():
    table = TABLES["per-class"]
    assert tuple(cell.of_class for cell in table.cells[:10]) == SOURCES.load("cifar10").classes
    for row in table.rows:
        *classes, total = [cell.paper.mean for cell in table.cells if cell.row == row and cell.paper]
        assert sum(classes) / 10 == pytest.approx(total)


def test_names_and_places_are_unique():
    assert [table.name for table in TABLES.values()] == list(TABLES)
    for table in TABLES.values():
        places = [(cell.row, cell.column) for cell in table.cells]
        assert len(set(places)) == len(places)


@pytest.mark.parametrize(("table", "cell"), CELLS, ids=[f"{table.name}-{c.row}-{c.column}" for table, c in CELLS])
def test_every_cell_can_be_trained(table, cell):
    settings = resolve([Layer("the cell", cell.settings), Layer("the test", {"model.name": "small-4"})])
    state = Trainer(settings, *stand_in(settings, 2000), torch.device("cpu"))
    assert len(state.labels) == cell.settings["data.labels"]


PAPER = Layer("the paper", {"recipe": "paper"})


def test_the_full_method_is_one_run_in_all_tables():
    places = [
        ("main", "AggMatch", "CIFAR-10, 40"),
        ("components", "with refinement", "with confidence"),
        ("similarity", "features and classes", "CIFAR-10, 40"),
        ("confidence", "weight", "CIFAR-10, 40"),
        ("queue", "2048", "CIFAR-10, 40"),
    ]
    identities = [resolve([PAPER, Layer("the cell", cell(*place).settings)]).identity() for place in places]
    assert all(identity == identities[0] for identity in identities)
    other = resolve([PAPER, Layer("the cell", cell("momentum", "momentum network", "CIFAR-10, 40").settings)])
    assert (
        other.identity()
        == resolve([PAPER, Layer("the cell", cell("queue", "512", "CIFAR-10, 40").settings)]).identity()
    )


def test_ablations_differ_from_the_full_method_in_what_they_ablate():
    def changed(table, row, column="CIFAR-10, 40"):
        full = resolve([Layer("the cell", cell("main", "AggMatch", "CIFAR-10, 40").settings)]).identity()["method"]
        ablated = resolve([Layer("the cell", cell(table, row, column).settings)]).identity()["method"]
        return {key: value for key, value in ablated.items() if full[key] != value}

    assert changed("components", "without refinement", "without confidence") == {"refine": False, "confidence": "off"}
    assert changed("components", "with refinement", "without confidence") == {"confidence": "off"}
    assert changed("similarity", "features only") == {"class_term": "none"}
    assert changed("confidence", "threshold, τ_u 0.1") == {"confidence": "thresholding", "vote_entropy": 0.1}
    assert changed("queue", "512") == {"slots": 512}
    assert changed("momentum", "online network") == {"slots": 512, "momentum_encoder": False}


def test_noise_flips_labels_of_similar_classes():
    settings = cell("noise", "AggMatch", "SVHN, 250, 50 %").settings
    assert settings == {
        "data.name": "svhn",
        "data.labels": 250,
        "data.noise": "asymmetric",
        "data.noise_rate": 0.5,
        "method.name": "aggmatch",
    }


def test_a_row_with_too_few_numbers_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        grid({"a": {}, "b": {}}, {"row": ({}, "1.0")})


def test_a_number_may_have_no_deviation():
    assert (Figure("92.09").mean, Figure("92.09").std) == (92.09, None)
    assert paper.printed("–") is None


def test_the_error_for_an_unknown_table_names_the_nearest():
    assert find_table("queue") is TABLES["queue"]
    with pytest.raises(AggMatchError, match="Unknown table 'queues'. Did you mean 'queue'?"):
        find_table("queues")
