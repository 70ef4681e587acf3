"""Writes ``digits.onnx`` and ``digits.npz``: a small convolutional network and real data for it.

The images are scikit-learn's handwritten digits (8 × 8 pixels), enlarged to 64 × 64. The network is
a stack of convolutions with random weights and a linear head that is fitted by ridge regression, so
that its accuracy is real although nothing was trained. The head is fitted on one part of the
images; the other part, which it has never seen, goes into ``digits.npz`` with its labels.

    python examples/make_digits.py [FOLDER]

Equal library versions write equal files.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SIDE = 64
CLASSES = 10
HELD_OUT = 800
SEED = 20
# (output channels, kernel, pooling): each convolution is followed by ReLU and, if pooling exceeds
# 1, by the maximum over squares of that side. The sizes make a request cost a few milliseconds.
LAYERS = ((32, 9, 1), (48, 5, 2), (64, 5, 1), (96, 3, 4))


def load_images() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All digits, shuffled: images ``[n, 1, SIDE, SIDE]`` from 0 to 16, labels ``[n]``."""
    from sklearn.datasets import load_digits

    data = load_digits()
    small = data.images.astype(np.float64)
    # Bilinear enlargement as a product of matrices, pixel centres aligned.
    centres = np.clip((np.arange(SIDE) + 0.5) * 8 / SIDE - 0.5, 0, 7)
    low = np.floor(centres).astype(int)
    high = np.minimum(low + 1, 7)
    weights = np.zeros((SIDE, 8))
    weights[np.arange(SIDE), low] += 1 - (centres - low)
    weights[np.arange(SIDE), high] += centres - low
    large = np.einsum("ap,npq,bq->nab", weights, small, weights)
    order = np.random.default_rng(SEED).permutation(len(large))
    images = np.rint(large[order]).astype(np.uint8)[:, None]
    return images, data.target[order].astype(np.int64)


def build_network(head: NDArray[np.float32], bias: NDArray[np.float32]) -> onnx.ModelProto:
    """The network with a head ``[features, CLASSES]`` and its bias ``[CLASSES]``."""
    rng = np.random.default_rng(SEED)
    nodes = [helper.make_node("Mul", ["image", "scale"], ["act0"], name="scale_pixels")]
    tensors = [numpy_helper.from_array(np.float32(1 / 16), "scale")]
    channels = 1
    for index, (width, kernel, pooling) in enumerate(LAYERS, start=1):
        fan_in = channels * kernel * kernel
        filters = rng.standard_normal((width, channels, kernel, kernel)) * np.sqrt(2.0 / fan_in)
        # Filters of mean zero answer to edges, not to brightness.
        filters -= filters.mean(axis=(2, 3), keepdims=True)
        tensors.append(numpy_helper.from_array(filters.astype(np.float32), f"filters{index}"))
        tensors.append(numpy_helper.from_array(np.zeros(width, np.float32), f"offset{index}"))
        before, conv = f"act{index - 1}", f"conv{index}"
        relu = f"relu{index}" if pooling > 1 else f"act{index}"
        nodes += [
            helper.make_node(
                "Conv",
                [before, f"filters{index}", f"offset{index}"],
                [conv],
                name=conv,
                kernel_shape=[kernel, kernel],
                pads=[kernel // 2] * 4,
            ),
            helper.make_node("Relu", [conv], [relu], name=f"relu{index}"),
        ]
        if pooling > 1:
            nodes.append(
                helper.make_node(
                    "MaxPool",
                    [relu],
                    [f"act{index}"],
                    name=f"pool{index}",
                    kernel_shape=[pooling, pooling],
                    strides=[pooling, pooling],
                )
            )
        channels = width
    tensors += [numpy_helper.from_array(head, "head"), numpy_helper.from_array(bias, "head_bias")]
    nodes += [
        helper.make_node("Flatten", [f"act{len(LAYERS)}"], ["features"], name="flatten"),
        helper.make_node("Gemm", ["features", "head", "head_bias"], ["logits"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        tensors,
        doc_string="Handwritten digits: random convolutions and a fitted linear head.",
    )
    model = helper.make_model(
        graph, producer_name="tritune examples", opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def compute_features(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """What the convolutions make of ``images``: ``[n, features]``."""
    side = SIDE // math.prod(pooling for _, _, pooling in LAYERS)
    size = LAYERS[-1][0] * side**2
    model = build_network(np.zeros((size, CLASSES), np.float32), np.zeros(CLASSES, np.float32))
    model.graph.output.append(
        helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", size])
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    parts = [
        session.run(["features"], {"image": images[i : i + 64].astype(np.float32)})[0]
        for i in range(0, len(images), 64)
    ]
    return np.concatenate(parts).astype(np.float64)


def fit_head(
    features: NDArray[np.float64], labels: NDArray[np.int64], *, ridge: float = 1e-2
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights and bias of the ridge regression from features to ±1 targets.

    ``ridge`` is relative to the mean eigenvalue of the Gram matrix. Solved in its dual form, since
    there are more features than images.
    """
    centre = features.mean(axis=0)
    centred = features - centre
    targets = np.where(labels[:, None] == np.arange(CLASSES), 1.0, -1.0)
    gram = centred @ centred.T
    gram[np.diag_indices_from(gram)] += ridge * np.trace(gram) / len(gram)
    weights = centred.T @ np.linalg.solve(gram, targets - targets.mean(axis=0))
    bias = targets.mean(axis=0) - centre @ weights
    return weights.astype(np.float32), bias.astype(np.float32)


def main() -> None:
    """Writes both files and prints the accuracy on the images that the head has never seen."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)

    images, labels = load_images()
    features = compute_features(images)
    head, bias = fit_head(features[HELD_OUT:], labels[HELD_OUT:])
    onnx.save(build_network(head, bias), folder / "digits.onnx")
    np.savez_compressed(
        folder / "digits.npz", image=images[:HELD_OUT], labels=labels[:HELD_OUT].astype(np.uint8)
    )
    scores = features[:HELD_OUT] @ head + bias
    accuracy = np.mean(scores.argmax(axis=1) == labels[:HELD_OUT])
    print(f"{folder / 'digits.onnx'}: accuracy {accuracy:.3f} on {HELD_OUT} unseen images")


if __name__ == "__main__":
    main()
