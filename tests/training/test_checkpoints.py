"""Checkpoints: what comes back, and what damage does."""

import hashlib
import json
import logging
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from metatok.model import GPT
from metatok.training import CheckpointStore, OptimConfig
from metatok.training.loop import adamw

from .conftest import build


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "cell"))


def stepped() -> tuple[GPT, torch.optim.AdamW]:
    """A model and optimiser after one step, so that there are moments to keep."""
    model = build()
    optimizer = adamw(model, OptimConfig())
    model(torch.arange(20)[None]).sum().backward()
    optimizer.step()
    return model, optimizer


def save_three(store: CheckpointStore) -> None:
    for step in (10, 20, 30):
        optimizer = {"state": {0: {"step": torch.tensor(float(step))}}, "param_groups": []}
        store.save(step, {"w": torch.full((4,), float(step))}, optimizer, {"step was": step}, keep=3)


def test_weights_and_optimizer_come_back_bit_for_bit(store: CheckpointStore) -> None:
    model, optimizer = stepped()
    address = store.save(7, model.state_dict(), optimizer.state_dict(), {"note": "x"})
    assert Path(address) == Path(store.uri, "step-7")
    found = CheckpointStore(store.uri).load()
    assert found is not None
    assert (found.step, found.meta) == (7, {"note": "x"})
    assert found.weights.keys() == model.state_dict().keys()
    assert all(torch.equal(found.weights[name], value) for name, value in model.state_dict().items())
    fresh = build(seed=1)
    fresh.load_state_dict(found.weights)
    other = adamw(fresh, OptimConfig())
    assert found.optimizer is not None
    other.load_state_dict(found.optimizer)
    for ours, theirs in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_weights_are_a_safetensors_file_that_others_read(store: CheckpointStore) -> None:
    from safetensors.torch import load_file

    model, _ = stepped()
    address = store.save(1, model.state_dict())
    weights = load_file(Path(address, "model.safetensors"))
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert sorted(path.name for path in Path(address).iterdir()) == ["manifest.json", "model.safetensors"]


def test_the_manifest_tells_sizes_and_hashes(store: CheckpointStore) -> None:
    save_three(store)
    folder = Path(store.uri, "step-20")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == {"model.safetensors", "optimizer.pt"}
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        assert entry == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])


def flip_a_bit(name: str) -> Any:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 4
        (folder / name).write_bytes(data)

    return damage


def replace_manifest(content: bytes) -> Any:
    return lambda folder: (folder / "manifest.json").write_bytes(content)


def another_steps_files(folder: Path) -> None:
    for path in folder.iterdir():
        path.write_bytes((folder.with_name("step-10") / path.name).read_bytes())


DAMAGES = {
    "truncated": truncate,
    "bit-flipped weights": flip_a_bit("model.safetensors"),
    "bit-flipped optimizer": flip_a_bit("optimizer.pt"),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "empty manifest": replace_manifest(b""),
    "half a manifest": replace_manifest(b'{"step": 30, "files"'),
    "manifest of another shape": replace_manifest(b"[1, 2]"),
    "null manifest": replace_manifest(b"null"),
    "binary manifest": replace_manifest(b"\xff\xfe\x00"),
    "another step's files": another_steps_files,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(
    damage: str, store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    save_three(store)
    DAMAGES[damage](Path(store.uri, "step-30"))
    with caplog.at_level(logging.WARNING):
        found = store.load()
    assert found is not None
    assert (found.step, found.weights["w"].tolist()) == (20, [20.0] * 4)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{store.uri}/step-30" in caplog.text


def test_any_flipped_bit_of_the_manifest_is_noticed_or_harmless(store: CheckpointStore) -> None:
    save_three(store)
    path = Path(store.uri, "step-30", "manifest.json")
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        found = store.load()
        assert found is not None
        assert found.weights["w"][0] == found.step
        assert found.step in (20, 30)


def test_when_all_are_damaged_there_is_none(store: CheckpointStore, caplog: pytest.LogCaptureFixture) -> None:
    assert store.load() is None
    assert not caplog.records
    save_three(store)
    for step in (10, 20, 30):
        truncate(Path(store.uri, f"step-{step}"))
    assert store.load() is None
    assert all(f"step-{step}" in caplog.text for step in (10, 20, 30))


def test_only_the_newest_are_kept(store: CheckpointStore) -> None:
    for step in (1, 2, 3, 10):
        store.save(step, {"w": torch.ones(1)}, keep=2)
    assert store.steps() == [3, 10]
    store.save(11, {"w": torch.ones(1)}, keep=1)
    assert store.steps() == [11]


def test_a_damaged_newer_one_does_not_push_out_what_was_just_written(store: CheckpointStore) -> None:
    store.save(30, {"w": torch.ones(1)}, keep=1)
    truncate(Path(store.uri, "step-30"))
    store.save(20, {"w": torch.full((1,), 20.0)}, keep=1)  # training went on from an earlier state
    found = store.load()
    assert found is not None
    assert found.step == 20


def test_saving_a_step_again_replaces_it(store: CheckpointStore) -> None:
    save_three(store)
    truncate(Path(store.uri, "step-30"))
    store.save(30, {"w": torch.full((1,), 5.0)}, keep=3)
    assert store.steps() == [10, 20, 30]
    found = store.load()
    assert found is not None
    assert found.weights["w"].tolist() == [5.0]


def test_what_a_kill_leaves_behind_is_harmless(store: CheckpointStore) -> None:
    save_three(store)
    for name in (".tmp-0123", "step-40.partial", "step-x", "notes"):
        folder = Path(store.uri, name)
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
    assert store.steps() == [10, 20, 30]
    found = store.load()
    assert found is not None
    assert found.step == 30
    store.save(40, {"w": torch.ones(1)})
    assert store.steps() == [40]
    assert not Path(store.uri, ".tmp-0123").exists()


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)


def test_a_pickle_in_place_of_the_optimizer_is_not_executed(
    store: CheckpointStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_three(store)
    folder, target = Path(store.uri, "step-30"), tmp_path / "executed"
    for number, data in enumerate(
        (pickle.dumps(Malicious(target), 2), saved_by_torch(Malicious(target), tmp_path))
    ):
        (folder / "optimizer.pt").write_bytes(data)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["files"]["optimizer.pt"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        found = store.load()
        assert not target.exists()
        assert found is not None
        assert found.step == 20
        assert len(caplog.records) == number + 1


def saved_by_torch(value: object, folder: Path) -> bytes:
    torch.save(value, folder / "evil.pt")
    return (folder / "evil.pt").read_bytes()


@pytest.mark.parametrize("name", ["with space", "a%20b", "a#b", "a?b", "Größe"])
def test_any_folder_name_will_do(name: str, tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path / name / "fp"))
    store.save(1, {"w": torch.ones(2)})
    assert (tmp_path / name / "fp" / "step-1" / "manifest.json").is_file()
    assert CheckpointStore(store.uri).steps() == [1]


def test_a_file_address_is_the_folder_it_names(tmp_path: Path) -> None:
    store = CheckpointStore(f"file://{tmp_path}/with%20space")
    assert store.save(3, {"w": torch.ones(2)}) == f"{store.uri}/step-3"
    assert CheckpointStore(str(tmp_path / "with space")).steps() == [3]


def test_a_remote_file_system_serves_as_well(caplog: pytest.LogCaptureFixture) -> None:
    store = CheckpointStore("mock:///bucket/fp")  # pyarrow's own, in memory
    save_three(store)
    found = store.load()
    assert found is not None
    assert (found.step, found.weights["w"].tolist()) == (30, [30.0] * 4)
    store._fs.delete_file("bucket/fp/step-30/manifest.json")  # an upload that was cut off
    found = store.load()
    assert found is not None
    assert found.step == 20
    assert "mock:///bucket/fp/step-30" in caplog.text
    store.save(40, {"w": torch.ones(1)}, keep=2)
    assert store.steps() == [30, 40]
    found = store.load()
    assert found is not None
    assert found.step == 40
    store.delete()
    assert store.steps() == []


def test_deleting_leaves_nothing_and_may_be_repeated(store: CheckpointStore) -> None:
    store.delete()
    save_three(store)
    store.delete()
    store.delete()
    assert not Path(store.uri).exists()


def test_a_checkpoint_of_two_million_parameters_takes_no_second(store: CheckpointStore) -> None:
    weights = {str(i): torch.randn(500, 400) for i in range(10)}
    start = time.perf_counter()
    store.save(1, weights)
    assert store.load() is not None
    assert time.perf_counter() - start < 1
