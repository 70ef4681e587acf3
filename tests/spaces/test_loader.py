"""Search spaces from YAML: resolution for a machine, and errors that name file and key."""

from dataclasses import replace
from pathlib import Path

import pytest

from analyzer.errors import SpaceError
from analyzer.spaces.loader import SpaceContext, combinations, load_space, space_names

TWO_CORES = SpaceContext(device="cpu", cores=2)


def _load(tmp_path: Path, text: str, around: SpaceContext = TWO_CORES):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="latin-1")
    return load_space(str(path), around)


def test_every_shipped_space_resolves_for_its_device() -> None:
    assert space_names() == ["ablation", "cpu", "gpu"]
    assert load_space("cpu", TWO_CORES).candidates()
    assert load_space("gpu", SpaceContext(device="gpu", cores=16, tensorrt=True)).candidates()


def test_the_cpu_space_keeps_instances_times_threads_within_the_cores() -> None:
    candidates = load_space("cpu", TWO_CORES).candidates()
    pairs = {(c.instance_count, c.intra_op_threads) for c, _ in candidates.values()}
    assert pairs == {(1, 1), (1, 2), (2, 1)}
    # 4 variants × 3 pairs × (no batching + 6 sizes × 6 delays)
    assert len(candidates) == 4 * 3 * 37


def test_the_ablation_has_eight_configurations_and_says_what_stands_for_tensorrt() -> None:
    space = load_space("ablation", TWO_CORES)
    labels = space.labels()
    assert len(labels) == 8
    assert sum("stands where TensorRT stands" in label for label in labels.values()) == 4


def test_precisions_narrow_the_space() -> None:
    only = SpaceContext(device="cpu", cores=2, precisions=("fp32",))
    assert {c.precision for c, _ in load_space("cpu", only).candidates().values()} == {"fp32"}
    assert len(load_space("ablation", only).candidates()) == 4


def test_a_model_that_cannot_be_batched_has_max_batch_size_zero() -> None:
    around = SpaceContext(device="cpu", cores=2, batchable=False)
    assert {c.max_batch_size for c, _ in load_space("cpu", around).candidates().values()} == {0}


def test_batches_are_never_smaller_than_the_request() -> None:
    around = SpaceContext(device="cpu", cores=2, request_batch_size=4)
    sizes = {c.max_batch_size for c, _ in load_space("cpu", around).candidates().values()}
    assert sizes == {4, 8, 16, 32, 64}


def test_requests_larger_than_every_batch_have_batches_that_hold_them() -> None:
    around = SpaceContext(device="cpu", cores=2, request_batch_size=128)
    sizes = {c.max_batch_size for c, _ in load_space("cpu", around).candidates().values()}
    assert sizes == {128, 256, 512}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("paramters:\n  precision: [fp32]\n", "'parameters'"),
        ("parameters:\n  max_batchsize: [1]\n", "'max_batch_size'"),
        ("parameters:\n  precision: [fp31]\n", "fp31"),
        ("parameters:\n  max_queue_delay: [100]\n", "100us|100ms"),
        ("parameters:\n  instance_count: [0]\n", "instance_count"),
        ("parameters: [1]\n", "mapping"),
        ("parameters:\n  precision: []\n", "precision"),
        ("name: x\n", "exactly one"),
        ("parameters:\n  quantization: {choices: [static], when: {precison: int8}}\n", "precison"),
        ("device: gpu\nparameters:\n  precision: [fp32]\n", "gpu"),
        ("a: [", "YAML"),
        ("parameters:\n  precision: [fp23]\n", "Did you mean 'fp32'"),
        ("parameters:\n  precision: [int8]\n", "allows fp32, fp16 and the file lists int8"),
        ("parameters:\n  dynamic_batching: ['yes']\n", "without quotation marks"),
        ("parameters:\n  instance_count: [core]\n", "'cores/2'"),
        ("parameters:\n  max_batch_size: ['8']\n", "[1, 2, 4]"),
        ("device: tpu\n", "leave the key out"),
        ("threads_per_core: 0\nparameters: {}\n", "multiple of the cores"),
        ("configurations: {}\n", "'- {precision: fp32"),
        ("configurations: [fp32]\n", "key: value"),
        ("parameters:\n  instance_count: [1000000]\n", "no integer from 1 to 1,024"),
        ("parameters:\n  intra_op_threads: [4096]\n", "no integer from 0 to 1,024"),
        ("parameters:\n  max_batch_size: [2147483648]\n", "no integer from 1 to 2,147,483,647"),
        ("threads_per_core: .inf\nparameters: {}\n", "inf is no number above 0"),
        ("threads_per_core: .nan\nparameters: {}\n", "nan is no number above 0"),
        ("threads_per_core: 1.7e+308\nparameters: {}\n", "is no number above 0, up to 1,048,576"),
        ("parameters:\n  max_queue_delay: [0, 2ms]\n", "max_queue_delay: it has no effect"),
        ("parameters:\n  preferred_batch_size: [[4]]\n", "preferred_batch_size: it has no effect"),
        ("parameters:\n  dynamic_batching: [false, true]\n", "dynamic_batching: batches have no"),
        (
            "parameters: {dynamic_batching: [false], max_batch_size: [8]}\n",
            "parameters.max_batch_size: it has no effect without dynamic batching",
        ),
        (
            "configurations:\n  - {label: a}\n  - {dynamic_batching: true}\n",
            "configurations[1].dynamic_batching: batches have no largest size",
        ),
        (
            "configurations: [{max_queue_delay: 2ms}]\n",
            "configurations[0].max_queue_delay: it has no effect",
        ),
        (
            "parameters: {backend: tensorrt, graph_level: {choices: 1, when: {backend: tensorrt}}}",
            "parameters.backend: the backend tensorrt needs",
        ),
        ("configurations: [{backend: tensorrt}]\n", "configurations: the backend tensorrt needs"),
        ("configurations: [{precision: int8}]\n", "--precisions leaves none of them"),
        ("\xff\n", "UTF-8"),
        ("parameters:\n  precision: [fp32]\n  precision: [int8]\n", "line 3: the key 'precision'"),
        ("name: a\nname: b\nparameters: {}\n", "line 2: the key 'name' stands twice"),
    ],
)
def test_errors_name_the_file_and_the_key(tmp_path: Path, text: str, says: str) -> None:
    around = SpaceContext(device="cpu", cores=2, precisions=("fp32", "fp16"))
    with pytest.raises(SpaceError) as caught:
        _load(tmp_path, text, around)
    assert caught.value.hint
    message = f"{caught.value.message} {caught.value.hint}"
    assert "mine.yaml" in message
    assert any(part in message for part in says.split("|"))


def test_a_cpu_space_has_openvino_where_it_is_here() -> None:
    around = SpaceContext(device="cpu", cores=2, accelerators=("openvino",))
    candidates = [c for c, _ in load_space("cpu", around).candidates().values()]
    openvino = [c for c in candidates if c.accelerator == "openvino"]
    assert {c.variant.label for c in openvino} == {
        "fp32+openvino",
        "int8-static+openvino",
        "int8-dynamic+openvino",
    }
    assert {(c.instance_count, c.intra_op_threads) for c in openvino} == {(1, 0), (2, 0)}
    assert len(candidates) - len(openvino) == 4 * 3 * 37


def test_choices_that_cannot_be_measured_are_told_or_refused(tmp_path: Path) -> None:
    space = _load(tmp_path, "parameters:\n  accelerator: [none, openvino]\n")
    assert {c.accelerator for c, _ in space.candidates().values()} == {None}
    assert len(space.left_out) == 1 and "OpenVINO provider" in space.left_out[0]
    with pytest.raises(SpaceError, match="OpenVINO provider"):
        _load(tmp_path, "parameters:\n  accelerator: [openvino]\n")
    listed = "configurations:\n  - {precision: fp32}\n  - {accelerator: openvino}\n"
    space = _load(tmp_path, listed)
    assert len(space.candidates()) == 1 and space.left_out
    gpu = SpaceContext(device="gpu", cores=2, tensorrt=True)
    with pytest.raises(SpaceError, match="without CUDA graphs"):
        _load(tmp_path, "parameters:\n  cuda_graphs: [true]\n", gpu)


def test_a_backend_that_is_not_here_is_told_where_another_remains(tmp_path: Path) -> None:
    """``backend: [tensorrt]`` was answered with ONNX Runtime, and nothing was said."""
    text = """
parameters:
  backend: [onnxruntime, tensorrt]
  graph_level: {choices: [0, 1], when: {backend: onnxruntime}}
"""
    gpu = SpaceContext(device="gpu", cores=2)
    space = _load(tmp_path, text, gpu)
    assert {c.backend for c, _ in space.candidates().values()} == {"onnxruntime"}
    assert len(space.candidates()) == 2
    assert len(space.left_out) == 1 and "the backend tensorrt needs" in space.left_out[0]
    assert not _load(tmp_path, text, replace(gpu, tensorrt=True)).left_out
    space = _load(tmp_path, "configurations:\n  - {}\n  - {backend: tensorrt}\n")
    assert len(space.candidates()) == 1 and "the backend tensorrt needs" in space.left_out[0]


def test_a_largest_batch_alone_means_dynamic_batching(tmp_path: Path) -> None:
    """As in Triton's auto-complete; the sizes were ignored, and nothing was said."""
    text = "parameters: {max_batch_size: [1, 4, 8], max_queue_delay: [0, 2ms]}\n"
    found = {
        (c.max_batch_size, c.dynamic_batching, c.max_queue_delay_us)
        for c, _ in _load(tmp_path, text).candidates().values()
    }
    batches = {(size, True, delay_us) for size in (4, 8) for delay_us in (0, 2000)}
    assert found == batches | {(1, False, None)}
    text = "parameters:\n  precision: [fp32, fp16]\n  max_batch_size: {choices: [8], when: "
    found = {
        (c.precision, c.max_batch_size, c.dynamic_batching)
        for c, _ in _load(tmp_path, text + "{precision: fp32}}\n").candidates().values()
    }
    assert found == {("fp32", 8, True), ("fp16", 1, False)}
    listed = "configurations: [{max_batch_size: 8, preferred_batch_size: [4]}, {label: plain}]\n"
    found = {
        (c.max_batch_size, c.dynamic_batching, c.preferred_batch_size)
        for c, _ in _load(tmp_path, listed).candidates().values()
    }
    assert found == {(8, True, (4,)), (1, False, None)}


def test_a_queue_delay_can_be_a_condition(tmp_path: Path) -> None:
    """It was refused in any file: a parameter carries microseconds, under another name."""
    text = """
parameters:
  max_batch_size: [8]
  max_queue_delay: [0, 2ms]
  preferred_batch_size: {choices: [[], [2]], when: {max_queue_delay: 2ms}}
"""
    found = {
        (c.max_queue_delay_us, c.preferred_batch_size)
        for c, _ in _load(tmp_path, text).candidates().values()
    }
    assert found == {(0, (8,)), (2000, (8,)), (2000, (2,))}
    with pytest.raises(SpaceError) as caught:
        _load(tmp_path, f"{text}  graph_level: {{choices: [1], when: {{precision: fp32}}}}\n")
    assert caught.value.hint == "Known: max_batch_size, max_queue_delay, preferred_batch_size."


def test_how_a_file_is_executed_can_be_searched(tmp_path: Path) -> None:
    """Each of Triton's settings of it, beside the accelerators."""
    text = """
parameters:
  graph_level: [0, 1, 2, -1]
  execution_mode: [sequential, parallel]
  inter_op_threads: {choices: [0, 2], when: {execution_mode: parallel}}
"""
    found = [c for c, _ in _load(tmp_path, text).candidates().values()]
    assert {c.graph_level for c in found} == {None, 1, 2, -1}
    modes = {(c.execution_mode, c.inter_op_threads) for c in found}
    assert modes == {(None, None), ("parallel", None), ("parallel", 2)}
    assert len(found) == 12
    text = "parameters:\n  pinned_memory: [true, false]\n  cudnn_search: [heuristic, exhaustive]\n"
    gpu = SpaceContext(device="gpu", cores=2)
    found = [c for c, _ in _load(tmp_path, text, gpu).candidates().values()]
    settings = {(c.pinned_memory, c.cudnn_search) for c in found}
    assert settings == {(p, s) for p in (None, False) for s in (None, "exhaustive")}
    triton = SpaceContext(device="gpu", cores=2, tensorrt=True, cuda_graphs=True)
    text = "parameters:\n  backend: [tensorrt]\n  cuda_graphs: [false, true]\n"
    found = [c for c, _ in _load(tmp_path, text, triton).candidates().values()]
    assert {c.cuda_graphs for c in found} == {None, True}


def test_int8_on_a_gpu_is_tensorrts() -> None:
    around = SpaceContext(device="gpu", cores=16, tensorrt=True, accelerators=("tensorrt",))
    int8 = [c for c, _ in load_space("gpu", around).candidates().values() if c.precision == "int8"]
    assert {(c.backend, c.accelerator) for c in int8} == {
        ("tensorrt", None),
        ("onnxruntime", "tensorrt"),
    }
    for capability, new in (((7, 5), set()), ((8, 0), {"bf16"}), ((9, 0), {"bf16", "fp8"})):
        space = load_space("gpu", replace(around, compute_capability=capability))
        precisions = {c.precision for c, _ in space.candidates().values()}
        assert precisions == {"fp32", "fp16", "int8"} | new
        fp8 = [c for c, _ in space.candidates().values() if c.precision == "fp8"]
        assert {c.backend for c in fp8} <= {"tensorrt"}
    alone = SpaceContext(device="gpu", cores=16)
    assert {c.precision for c, _ in load_space("gpu", alone).candidates().values()} == {
        "fp32",
        "fp16",
    }
    labels = load_space("ablation", alone).labels()
    assert "trt-base (fp16 stands where TensorRT stands)" in labels.values()


def test_an_unknown_name_lists_the_shipped_ones() -> None:
    with pytest.raises(SpaceError, match="no search space") as caught:
        load_space("cpuu", TWO_CORES)
    assert "cpu" in caught.value.hint


def test_a_space_too_large_to_be_listed_is_refused_at_once(tmp_path: Path) -> None:
    sizes, delays = list(range(1, 10_000)), [f"{delay}us" for delay in range(1000)]
    text = f"parameters:\n  max_batch_size: {sizes}\n  max_queue_delay: {delays}\n"
    with pytest.raises(SpaceError) as caught:
        _load(tmp_path, text)
    assert "more than 20,000 combinations" in caught.value.message
    assert "max_batch_size 9999, max_queue_delay_us 1000" in caught.value.message


def test_combinations_are_counted_as_they_are_made() -> None:
    around = SpaceContext(
        device="gpu", cores=16, tensorrt=True, accelerators=("tensorrt",), cuda_graphs=True
    )
    large = SpaceContext(device="cpu", cores=256, accelerators=("openvino",))
    for space in (
        load_space("cpu", TWO_CORES),
        load_space("cpu", large),
        load_space("gpu", around),
    ):
        counted = combinations(space.parameters, 20_000)
        assert counted == sum(1 for _ in space.assignments())
