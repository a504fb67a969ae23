"""The command lines of the examples: defaults of the CIFAR-10 job, and bad values in one line."""

import pytest

from examples import ddp_cifar_resnet, mnist
from examples.options import parse_arguments


def test_defaults():
    args = parse_arguments([])
    assert (args.model, args.head, args.epochs, args.average) == ("resnet18", "categorical", 2, False)
    assert (args.count, args.prior_factor, args.rates, args.gain_w, args.gain_b) == (40, 100, (1, 0.02), 0.3, 0.3)
    assert args.bn_batches == 40
    # Chosen when it is known which data there are.
    assert args.batch_size is args.augment is args.through_statistics is args.average_last is None
    assert args.limit_train is args.threads is None


@pytest.mark.parametrize("options", [["--head", "hierarchical"], ["--sigma-v-decay", "0.9"], ["--forget", "1"]])
def test_an_option_of_observed_numbers_chooses_the_tree(options):
    args = parse_arguments(options)
    assert (args.head, args.average) == ("hierarchical", True)
    assert (args.sigma_v, args.sigma_v_min, args.sigma_v_decay, args.forget) == (0.05, 0.05, 0.9, 1)
    assert (args.gain_w, args.gain_b) == (0.1, 0.1)


def test_switches():
    args = parse_arguments(["--sum", "--no-augment", "--resume", "file"])
    assert (args.average, args.augment, args.resume) == (False, False, "file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "argument --batch-size: must be at least 1, got 0"),
        (["--epochs", "two"], "argument --epochs: invalid integer value: 'two'"),
        (["--sigma-v", "-1"], "argument --sigma-v: must be above 0 and finite, got -1"),
        (["--head", "categorical", "--sigma-v", "1"], "--sigma-v means nothing to --head categorical"),
        (["--head", "remax", "--count", "1"], "--count means nothing to --head remax"),
        (["--rates", "1", "-1"], "argument --rates: must be above 0 and finite, got -1"),
        (["--gain-w", "nan"], "argument --gain-w: must be above 0 and finite, got nan"),
        (["--forget", "0.5"], "argument --forget: must be at least 1 and finite, got 0.5"),
        (["--average-last", "1.5"], "argument --average-last: must be from 0 to 1, got 1.5"),
        (["--average-last", "0.5", "--parallel", "fsdp"], "--average-last is for --parallel ddp"),
        (["--micro-batches", "2", "--parallel", "fsdp"], "--micro-batches is for --parallel pipeline"),
        (["--balance", "7,x", "--parallel", "pipeline"], "argument --balance: invalid balance value: '7,x'"),
        (["--seed", "-3"], "argument --seed: must be at least 0, got -3"),
        (["--model", "resnet50"], "argument --model: invalid choice: 'resnet50'"),
        (["--average", "--sum"], "argument --sum: not allowed with argument --average"),
        (["--checkpoint-every", "5"], "--checkpoint-every needs a folder: give it by --checkpoint-dir"),
        (["--checkpoint-on-signal"], "--checkpoint-on-signal needs a folder: give it by --checkpoint-dir"),
        (["--keep-last", "2"], "--keep-last needs a folder: give it by --checkpoint-dir"),
        (["--allow-changes"], "--allow-changes is for a resumed run: give --resume"),
        (["--keep-last", "0"], "argument --keep-last: must be at least 1, got 0"),
        (["--resume"], "--resume needs a checkpoint: name it, or give its folder by --checkpoint-dir"),
    ],
)
def test_bad_options(capsys, arguments, message):
    with pytest.raises(SystemExit) as error:
        parse_arguments(arguments)
    assert error.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture
def second_of_two(monkeypatch):
    for name, value in {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("arguments", [["--help"], ["--epochs", "0"]])
def test_other_ranks_are_silent(second_of_two, capsys, arguments):
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("job", [ddp_cifar_resnet, mnist])
def test_one_process_each_is_refused_under_a_launcher(second_of_two, monkeypatch, capsys, job):
    with pytest.raises(SystemExit) as error:
        job.main(["--backend", "serial"])
    assert error.value.code == 1 and capsys.readouterr() == ("", "")
    monkeypatch.setenv("PMI_RANK", "0")
    with pytest.raises(SystemExit) as error:
        job.main(["--backend", "serial"])
    assert error.value.code == ("error: --backend serial is for one process, and MPICH's mpirun (Hydra) has started 2")
